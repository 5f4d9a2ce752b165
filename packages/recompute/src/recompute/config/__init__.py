"""What is asked: a job in any accepted form becomes one frozen :class:`JobConfig`."""
