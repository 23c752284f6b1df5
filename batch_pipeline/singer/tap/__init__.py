"""The tap: published batches as a Singer tap offers them."""
