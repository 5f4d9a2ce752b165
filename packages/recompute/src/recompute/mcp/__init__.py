"""The same commands as tools for agents."""
