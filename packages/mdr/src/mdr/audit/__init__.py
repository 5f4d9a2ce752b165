"""Is it safe to read: a pure function from bytes to findings and a grade."""
