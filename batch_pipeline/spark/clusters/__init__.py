"""Clusters: where executors run, what the driver tells them, what they need and what they lack."""
