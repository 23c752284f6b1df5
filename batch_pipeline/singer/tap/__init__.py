"""A Singer tap that emits published batches."""
