"""Bytes in memory as the readers of text files want them."""

import io

from batch_pipeline.model.errors import BadFileError


class BytesInput(io.BytesIO):
    """A text file of the stream `orders`."""

    def bad_file(self, reason: str, *, line: int | None = None) -> BadFileError:
        """Make the error that says that this whole file is bad."""
        return BadFileError("orders", "file:///orders", line, reason)
