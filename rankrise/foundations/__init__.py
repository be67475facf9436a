"""Foundations: errors, whole files, settings and provenance, which everything else builds on."""
