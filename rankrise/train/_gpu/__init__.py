"""Kernels of our own for the paper's vision transformer, in Triton."""
