"""Rules that every BATCH producer should keep, run against ours; `python -m` runs them on any."""
