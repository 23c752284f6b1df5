"""Everything that knows Dagster. Asset bodies read a key, call one step and return metadata."""
