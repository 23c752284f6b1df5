"""Tests of the pages in `batch_pipeline/docs`, and the writer of the one that models tell."""
