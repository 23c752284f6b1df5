"""Lands what any tap says as files, and registers them: a Singer target that ends in a landing."""
