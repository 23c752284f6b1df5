"""Tests of batch_pipeline.encode.mapping."""
