"""Runs `dev` under load, kills its processes, and measures it."""
