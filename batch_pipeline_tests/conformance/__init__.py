"""Conformance rules for BATCH producers, checked against ours; `python -m` checks any command."""
