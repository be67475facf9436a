"""The record of a toy run: its pieces, and the curves in them."""
