"""Processes of the real system that are killed at every point, and what is left of them."""
