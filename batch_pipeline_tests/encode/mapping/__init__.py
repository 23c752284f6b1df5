"""Tests of batch_pipeline.encode.record mapping."""
