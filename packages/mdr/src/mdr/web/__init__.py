"""Pages, badges and feeds for people, from the same documents that the API answers."""
