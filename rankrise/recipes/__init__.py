"""Recipes: what an experiment is asked to do, as a dataclass whose fields say what they are."""
