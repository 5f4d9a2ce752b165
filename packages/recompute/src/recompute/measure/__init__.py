"""Matched runs: the ledger they are written to, how they are compared, how they are launched."""
