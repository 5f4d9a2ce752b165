"""Freeze an artifact: bytes, manifest, label and order."""
