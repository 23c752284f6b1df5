"""Tests of the pages in `batch_pipeline/docs`, and the generator of the stream file reference."""
