"""Hostile texts, locations and files."""
