"""Which choice is best: legal candidates, their cost, a plan."""
