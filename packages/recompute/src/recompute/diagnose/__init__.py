"""Why it ran out of memory: logs and snapshots to a verdict by evidence."""
