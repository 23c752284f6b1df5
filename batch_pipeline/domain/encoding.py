"""What a BATCH file is: format and compression, in Singer's words."""

from dataclasses import dataclass
from enum import StrEnum

from batch_pipeline.domain.errors import InvalidValueError


class Format(StrEnum):
    """Formats of BATCH files."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


class Compression(StrEnum):
    """Compressions of BATCH files; jsonl compresses the whole file, the others what is in it."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTD = "zstd"
    NONE = "none"


_SUFFIXES = {
    (Format.JSONL, Compression.GZIP): "jsonl.gz",
    (Format.JSONL, Compression.ZSTD): "jsonl.zst",
    (Format.JSONL, Compression.NONE): "jsonl",
    (Format.PARQUET, Compression.GZIP): "parquet",
    (Format.PARQUET, Compression.SNAPPY): "parquet",
    (Format.PARQUET, Compression.ZSTD): "parquet",
    (Format.PARQUET, Compression.NONE): "parquet",
    (Format.ARROW, Compression.NONE): "arrow",
    (Format.ARROW, Compression.ZSTD): "arrow",
}
SUFFIXES = frozenset(_SUFFIXES.values())
_LEVELS = {Compression.GZIP: range(10), Compression.ZSTD: range(1, 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A pair of format and compression that readers exist for.

    `level` is how hard to compress, None for the fastest that is worth it.

    Raises:
        InvalidValueError: the pair cannot be written, or has no such level.
    """

    format: Format
    compression: Compression
    level: int | None = None

    def __post_init__(self) -> None:
        if (self.format, self.compression) not in _SUFFIXES:
            allowed = [str(c) for f, c in _SUFFIXES if f is self.format]
            raise InvalidValueError(
                "encoding.compression", str(self.compression), " or ".join(allowed)
            )
        levels = _LEVELS.get(self.compression, range(0))
        if self.level is not None and self.level not in levels:
            expected = f"{levels[0]} to {levels[-1]}" if levels else "none for this compression"
            raise InvalidValueError("encoding.level", self.level, expected)

    @property
    def suffix(self) -> str:
        """File name ending, without a leading dot."""
        return _SUFFIXES[self.format, self.compression]
