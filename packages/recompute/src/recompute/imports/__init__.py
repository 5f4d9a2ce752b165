"""Runs that were not measured by us, as rows of a ledger: training logs and TensorBoard event files."""
