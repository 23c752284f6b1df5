"""Tests of batch_pipeline.model."""
