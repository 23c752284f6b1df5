"""Tests of batch_pipeline.encode.validation."""
