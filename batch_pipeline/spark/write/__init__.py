"""From chunks of records to part files."""
