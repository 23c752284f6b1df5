"""Sensors of streams and of the code location."""
