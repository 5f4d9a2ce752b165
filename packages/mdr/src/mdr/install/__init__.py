"""Put verified bytes where agents look, and keep mdr.lock."""
