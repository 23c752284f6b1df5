"""Cuts records into part files, each within the limits unless one record alone exceeds them.

Knows records as things with a size; how they are written is the business of the part's body.
"""

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.write.fill import Ends, Fill
from batch_pipeline.spark.write.open_parts import OpenPart
from batch_pipeline.spark.write.part_files import PartFiles, PartNames


class Piece(Protocol):
    """Some consecutive records; `ends` tells where each one ends in their uncompressed bytes."""

    @property
    def ends(self) -> Ends:
        """Bytes from the start of the first record to the end of each."""
        ...

    def between(self, first: int, stop: int) -> Self:
        """Give the records from `first` to before `stop`."""
        ...


PieceT = TypeVar("PieceT", bound=Piece)
PieceT_contra = TypeVar("PieceT_contra", bound=Piece, contravariant=True)


class PartBody(Protocol[PieceT_contra]):
    """What is in one part file."""

    def add(self, piece: PieceT_contra) -> None:
        """Write records in order, now or later."""
        ...

    def finish(self) -> None:
        """Write all that is held back."""
        ...

    def drop(self) -> None:
        """Let go of a file that is already aborted; raises nothing."""
        ...


class PartWriter(Generic[PieceT]):
    """Writes part files one after the other; where they are cut depends on the records alone."""

    def __init__(
        self,
        names: PartNames,
        limits: PartLimits,
        open_body: Callable[[OpenPart], PartBody[PieceT]],
    ) -> None:
        self._files = PartFiles(names)
        self._limits = limits
        self._open_body = open_body
        self._body: PartBody[PieceT] | None = None
        self._fill = self._empty()

    def append(self, piece: PieceT) -> None:
        """Write records in order.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        ends, first = piece.ends, 0
        while first < len(ends):
            stop = self._fill.take(ends, first)
            if stop > first:
                self._opened().add(piece.between(first, stop))
                first = stop
            if first < len(ends):
                self._finish_part()

    def close(self) -> tuple[PartFile, ...]:
        """Finish the last part file and give all of them in order.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        self._finish_part()
        return self._files.close()

    def abort(self) -> None:
        """Remove all files."""
        self._files.abort()
        if self._body is not None:
            self._body.drop()
            self._body = None

    def _empty(self) -> Fill:
        return Fill(max_records=self._limits.max_records, max_bytes=self._limits.max_bytes)

    def _opened(self) -> PartBody[PieceT]:
        if self._body is None:
            self._body = self._open_body(self._files.start())
        return self._body

    def _finish_part(self) -> None:
        if self._body is not None:
            self._body.finish()
            self._files.finish(self._fill.records)
            self._body = None
        self._fill = self._empty()
