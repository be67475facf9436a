"""Show: figures, tables and pages, drawn from records and from nothing else."""
