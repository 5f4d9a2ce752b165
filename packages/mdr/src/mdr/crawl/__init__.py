"""Sources indexed again on a schedule, by workers that may die at any moment."""
