"""Tests of batch_pipeline.storage."""
