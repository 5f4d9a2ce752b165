"""An answer over HTTP as a value: its validators, encodings and ranges, kept while the stores stay the same."""
