"""The engine for diagonal networks: exact coordinates, scipy's BDF, Newton's method on the support."""
