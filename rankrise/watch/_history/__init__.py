"""The history of a run that nobody tracked, from its checkpoints: a series, a plan, and a tracked run."""
