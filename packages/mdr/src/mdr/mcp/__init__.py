"""The same documents as read-only tools for agents."""
