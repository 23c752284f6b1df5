"""Part files of lines, compressed as a whole or not at all; what a line says is not known here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.text_lines import TextLines
from batch_pipeline.spark.write.compression import Compressor, new_compressor
from batch_pipeline.spark.write.fill import Ends, start_of
from batch_pipeline.spark.write.open_parts import OpenPart
from batch_pipeline.spark.write.part_files import PartNames
from batch_pipeline.spark.write.part_writer import PartWriter

_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines: their text, each with its line feed, and where each one ends in it."""

    text: bytes | memoryview
    ends: Ends

    @classmethod
    def of(cls, records: Sequence[bytes]) -> "Lines":
        """Join records, which have no line feed."""
        if isinstance(records, TextLines):
            return cls(memoryview(records.text)[: records.size_bytes], records.ends)
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(b"\n".join([*records, b""]), np.cumsum(sizes + 1))

    def between(self, first: int, stop: int) -> "Lines":
        """Give the lines from `first` to before `stop`."""
        if first == 0 and stop == len(self.ends):
            return self
        start = start_of(self.ends, first)
        text = memoryview(self.text)[start : int(self.ends[stop - 1])]
        return Lines(text, self.ends[first:stop] - start)


def line_writer(
    names: PartNames, limits: PartLimits, compression: Compression, level: int | None = None
) -> PartWriter[Lines]:
    """Make a writer of lines, whose text counts as their size."""

    def body(file: OpenPart) -> LineBody:
        return LineBody(file, new_compressor(compression, level))

    return PartWriter(names, limits, body)


class LineBody:
    """Lines of one part file; the compressor gets pieces of one size, however lines arrive."""

    def __init__(self, file: OpenPart, compressor: Compressor | None) -> None:
        self._file = file
        self._compressor = compressor
        self._held = bytearray()

    def add(self, lines: Lines) -> None:
        """Write lines in order, now or later."""
        text = memoryview(lines.text)
        while len(self._held) + len(text) >= _PIECE_BYTES:
            taken = _PIECE_BYTES - len(self._held)
            if self._held:
                self._held += text[:taken]
                self._pass_on(bytes(self._held))
                self._held.clear()
            else:
                self._pass_on(text[:taken])
            text = text[taken:]
        self._held += text

    def finish(self) -> None:
        """Write all that is held back."""
        self._pass_on(bytes(self._held))
        self._held.clear()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def drop(self) -> None:
        """Do nothing: no one else holds the file."""

    def _pass_on(self, piece: bytes | memoryview) -> None:
        self._file.write(piece if self._compressor is None else self._compressor.compress(piece))
