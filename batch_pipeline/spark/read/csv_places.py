"""In which lines the records of a block of csv start. Found out only when somebody asks."""

from collections.abc import Sequence
from typing import overload

from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.read.csv_strict import CsvScanner


class CsvPlaces(Sequence[int]):
    """The lines of the `count` records that `data` holds up to `end`."""

    def __init__(
        self, data: bytes, end: int, options: CsvOptions, first_line: int, count: int
    ) -> None:
        self._data = data
        self._end = end
        self._options = options
        self._first_line = first_line
        self._count = count
        self._lines: list[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if self._lines is None:
            whole = self._data[: self._end]
            scanner = CsvScanner(whole, self._options, first_line=self._first_line, eof=True)
            self._lines = [record.line for record in scanner]
        return self._lines[index]
