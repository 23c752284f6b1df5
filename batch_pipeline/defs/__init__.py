"""All code that depends on Dagster. Asset bodies read a key, call one step and return metadata."""
