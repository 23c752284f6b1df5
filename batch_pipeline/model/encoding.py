"""Encoding of part files: formats and compressions, in Singer's terms.

`PART_FORMATS` describes every output format in one place, without loading pyarrow. The reader and
the writer of a format are the module of the same name in `storage.part_formats`, which is imported
when part files are read or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from batch_pipeline.model.errors import require

FASTEST_LEVEL = 1  # default of gzip and zstd: the next levels compress hardly better


class Format(StrEnum):
    """Formats of part files, which BATCH messages name."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    ORC = "orc"


class Compression(StrEnum):
    """Compressions of part files: of the whole file for jsonl, otherwise inside the file."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTD = "zstd"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFormat:
    """Description of a format of part files.

    `title` is its name in texts. `suffixes` has the file name extension of each compression that
    the format supports; the first compression is the default. Files of a columnar format have the
    columns of the schema, other files are lines of JSON objects. `has_levels` states whether a
    compression level can be chosen.
    """

    title: str
    suffixes: Mapping[Compression, str]
    is_columnar: bool = True
    has_levels: bool = True

    @property
    def compressions(self) -> tuple[Compression, ...]:
        """Return the supported compressions, the default first."""
        return tuple(self.suffixes)


PART_FORMATS: Mapping[Format, PartFormat] = {
    Format.JSONL: PartFormat(
        title="JSON lines",
        suffixes={
            Compression.GZIP: "jsonl.gz",
            Compression.ZSTD: "jsonl.zst",
            Compression.NONE: "jsonl",
        },
        is_columnar=False,
    ),
    Format.PARQUET: PartFormat(
        title="parquet",
        suffixes=dict.fromkeys(
            (Compression.SNAPPY, Compression.ZSTD, Compression.GZIP, Compression.NONE), "parquet"
        ),
    ),
    Format.ARROW: PartFormat(
        title="Arrow IPC",
        suffixes=dict.fromkeys((Compression.NONE, Compression.ZSTD), "arrow"),
    ),
    Format.ORC: PartFormat(
        title="ORC",
        suffixes=dict.fromkeys((Compression.ZSTD, Compression.SNAPPY, Compression.NONE), "orc"),
        has_levels=False,
    ),
}
SUFFIXES = frozenset(
    suffix for part_format in PART_FORMATS.values() for suffix in part_format.suffixes.values()
)
_LEVELS = {Compression.GZIP: range(10), Compression.ZSTD: range(1, 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Supported combination of format and compression.

    `level` is the compression level, None for a fast default.

    Raises:
        InvalidValueError: the combination or the level is not supported.
    """

    format: Format
    compression: Compression
    level: int | None = None

    def __post_init__(self) -> None:
        supported, name = self.part_format.compressions, str(self.compression)
        require(name in supported, "encoding.compression", name, " or ".join(supported))
        levels = _LEVELS.get(self.compression, range(0))
        if not self.part_format.has_levels:
            levels = range(0)
        expected = f"{levels[0]} to {levels[-1]}" if levels else "none for this encoding"
        require(self.level is None or self.level in levels, "encoding.level", self.level, expected)

    @property
    def part_format(self) -> PartFormat:
        """Return the description of the format."""
        return PART_FORMATS[self.format]

    @classmethod
    def from_json(cls, written: Mapping[str, str]) -> "Encoding":
        """Read the form that `to_json` returns."""
        file_format, compression = written["format"], written["compression"]
        return cls(format=Format(file_format), compression=Compression(compression))

    def to_json(self) -> dict[str, str]:
        """Return the format and the compression, as BATCH messages and manifest files name them."""
        return {"format": self.format.value, "compression": self.compression.value}

    @property
    def suffix(self) -> str:
        """Return the file name extension, without a leading dot."""
        return self.part_format.suffixes[self.compression]
