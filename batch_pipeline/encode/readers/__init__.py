"""Read source files into chunks of records."""
