"""Whether records fit the schema, and what does not."""
