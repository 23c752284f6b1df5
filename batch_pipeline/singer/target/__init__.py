"""A Singer target that writes messages to files in a landing and registers the files."""
