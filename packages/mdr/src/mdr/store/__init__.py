"""Keep it: blobs by SHA-256 and an index, both safe against a kill at any moment."""
