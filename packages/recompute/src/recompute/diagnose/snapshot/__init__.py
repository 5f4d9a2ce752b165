"""Memory snapshots of torch: read without executing anything, then accounted for."""
