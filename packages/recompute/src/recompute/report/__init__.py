"""Say it: text, JSON, overrides."""
