"""The audit of a whole folder. Shown beside the grade and never part of it."""
