"""The folder of a run on disk: file names, run.json, rows of JSON, tensors, the lock, and reading it back."""
