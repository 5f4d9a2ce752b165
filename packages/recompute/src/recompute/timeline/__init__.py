"""When bytes live: schedule to events to peaks, per rank and phase."""
