"""References: how people and locks name an artifact and a version."""
