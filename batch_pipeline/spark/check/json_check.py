"""Checks JSON records against the schema at the speed of C; their text stays as it is."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from batch_pipeline.domain.record_rules import RESCUED
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.arrow_types import JSON_TYPES
from batch_pipeline.spark.check.json_segments import Found, Segments
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.chunks import BadText, Chunk, JsonRecords, Table


class JsonCheck:
    """Checks chunks; what the columns cannot hold goes to the profile.

    With `values`, checked records come out as a table of the schema's columns, in which objects,
    arrays and mixtures are JSON text; else as the lines they were.
    """

    def __init__(self, profile: Profile, stream: Stream, *, values: bool) -> None:
        self._profile = profile
        self._stream = stream
        self._values = values
        self._added = frozenset({RESCUED})
        self._segments = Segments(profile, stream, self._added, values=values)

    def checked(self, chunk: JsonRecords) -> Chunk:
        """Set aside what is no record."""
        found = Found(chunk)
        start = 0
        while start < len(chunk.lines):
            start = self._segments.read(found, start)
        places = _taken(chunk.places, found)
        numbers = _taken(chunk.numbers, found)
        bad = (
            BadText(line=chunk.places[at], reason=reason, raw=chunk.lines[at])
            for at, reason in sorted(found.bad.items())
        )
        counts: dict[str, Any] = {
            "bad": (*chunk.bad, *bad),
            "filtered": chunk.filtered,
            "rescued": chunk.rescued + found.rescued,
        }
        if self._values and self._profile.fits:
            batch = self._batch(found, len(found.good))
            kinds = {column.name: column.type for column in self._profile.columns.values()}
            nested = frozenset(n for n in batch.schema.names if kinds[n] in JSON_TYPES)
            return Table(batch=batch, places=places, numbers=numbers, json=nested, **counts)
        return JsonRecords(lines=found.lines(), places=places, numbers=numbers, **counts)

    def _batch(self, found: "Found", count: int) -> pa.RecordBatch:
        columns = list(self._profile.columns.values())
        arrays = {}
        for at, column in enumerate(columns if count and found.arrays else ()):
            pieces = [piece[at] for piece in found.arrays]
            array = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
            if column.name not in self._added or array.null_count < len(array):
                arrays[column.name] = array
        if not arrays:  # there may be records all the same
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        return pa.RecordBatch.from_pydict(arrays)


def _taken(numbers: Sequence[int], found: Found) -> Sequence[int]:
    return [numbers[at] for at in found.good] if found.bad else numbers
