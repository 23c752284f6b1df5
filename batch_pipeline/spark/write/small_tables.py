"""Puts small tables that follow each other together: many files of few records cost less then.

The order of the rows stays; what the tables hold is not looked at.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from batch_pipeline.spark.chunks import Table

_MANY_ROWS = 256
_HELD_BYTES = 2**20


class SmallTables:
    """Tables held back until they are worth the work on each of their columns."""

    def __init__(self) -> None:
        self._held: list[Table] = []
        self._rows = 0
        self._size_bytes = 0

    def gathered(self, table: Table) -> Iterator[Table]:
        """Take a table, give those that can be written now; `rest` gives what is held back.

        Of tables put together only the batch says what is in them.
        """
        size_bytes = table.batch.get_total_buffer_size()
        is_small = table.good < _MANY_ROWS and size_bytes < _HELD_BYTES
        if self._held and not (is_small and _are_alike(self._held[0], table)):
            yield from self.rest()
        if not is_small:
            yield table
            return
        self._held.append(table)
        self._rows += table.good
        self._size_bytes += size_bytes
        if self._rows >= _MANY_ROWS or self._size_bytes >= _HELD_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Table]:
        """Give what is held back as one table, if there is any."""
        held, self._held, self._rows, self._size_bytes = self._held, [], 0, 0
        if len(held) < 2:
            yield from held
            return
        batch = pa.concat_batches([table.batch for table in held])
        yield replace(held[0], batch=batch, places=(), numbers=())


def _are_alike(one: Table, other: Table) -> bool:
    same_kinds = one.text == other.text and one.json == other.json
    return same_kinds and one.batch.schema.equals(other.batch.schema)
