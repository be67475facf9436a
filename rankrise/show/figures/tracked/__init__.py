"""Figures that are drawn from studies of tracked runs."""
