"""Toy runs: their settings, the pieces they are kept in, and the record read back and written."""
