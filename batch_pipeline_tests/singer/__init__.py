"""Tests of batch_pipeline.singer."""
