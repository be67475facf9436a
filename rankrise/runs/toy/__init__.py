"""The record of a toy run: the pieces it is kept in, read back and written."""
