"""Tests of batch_pipeline.spark."""
