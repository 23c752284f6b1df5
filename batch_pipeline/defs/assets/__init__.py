"""The assets of a stream and what materializing them does; what they show is in `metadata`."""
