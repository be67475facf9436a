"""The engine for full matrices: modes with exponents, an exponential integrator, logarithmic columns."""
