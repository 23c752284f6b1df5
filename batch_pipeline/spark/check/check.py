"""The check of all chunks of a task, whatever they are made of."""

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.check.json_check import JsonCheck
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.check.table_check import TableCheck
from batch_pipeline.spark.chunks import Chunk, JsonRecords


class Check:
    """Sets aside what is no record and tells the profile what the schema cannot hold.

    For outputs with columns the checked chunks are tables of the schema's types, but for columns of
    any type, which hold JSON text, text cells or typed values; for JSON lines, records stay lines
    and cells stay text.
    """

    def __init__(self, profile: Profile, stream: Stream) -> None:
        self._profile = profile
        values = stream.encoding.format is not Format.JSONL
        self._json = JsonCheck(profile, stream, values=values)
        self._tables = TableCheck(profile, stream, values=values)

    def begin(self, item: Item) -> None:
        """Say which item the next chunks belong to."""
        self._profile.item = item

    def checked(self, chunk: Chunk) -> Chunk:
        """Check the records of a chunk.

        What it gives can be written only as long as the profile fits.
        """
        if isinstance(chunk, JsonRecords):
            return self._json.checked(chunk)
        return self._tables.checked(chunk)
