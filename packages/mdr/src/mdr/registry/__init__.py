"""Use cases over stores: the only place where the stages meet."""
