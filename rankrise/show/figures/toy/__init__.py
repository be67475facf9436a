"""Figures that are drawn from a seed of a toy run."""
