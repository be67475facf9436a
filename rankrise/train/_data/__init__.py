"""Data sets in their standard formats, read into one form."""
