"""What each Megatron revision allows: rows in a table, checked without changing the job."""
