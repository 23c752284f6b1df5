"""Write chunks of records into part files."""
