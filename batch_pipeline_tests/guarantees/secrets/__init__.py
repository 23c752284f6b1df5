"""Searches for secrets in all files, outputs and processes."""
