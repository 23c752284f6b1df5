"""A Singer target that writes messages to a landing as files and registers these."""
