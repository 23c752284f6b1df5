"""Tests of batch_pipeline.load."""
