"""Track: the rank growth of a live training run, recorded in a folder."""
