"""The folder of a run on disk: the names of its files, run.json, rows of JSON, tensors, and the lock."""
