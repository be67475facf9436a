"""A run's folder on disk, its lock, and the opened tracked run."""
