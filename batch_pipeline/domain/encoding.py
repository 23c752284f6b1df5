"""What a BATCH file is: format and compression, in Singer's words."""

from dataclasses import dataclass
from enum import StrEnum

from batch_pipeline.domain.errors import InvalidValueError


class Format(StrEnum):
    """Formats of BATCH files."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class Compression(StrEnum):
    """Compressions of BATCH files; parquet compresses its pages, jsonl the whole file."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    ZSTD = "zstd"
    NONE = "none"


_SUFFIXES = {
    (Format.JSONL, Compression.GZIP): "jsonl.gz",
    (Format.JSONL, Compression.NONE): "jsonl",
    (Format.PARQUET, Compression.GZIP): "parquet",
    (Format.PARQUET, Compression.SNAPPY): "parquet",
    (Format.PARQUET, Compression.ZSTD): "parquet",
    (Format.PARQUET, Compression.NONE): "parquet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A pair of format and compression that readers exist for.

    Raises:
        InvalidValueError: the pair cannot be written.
    """

    format: Format
    compression: Compression

    def __post_init__(self) -> None:
        if (self.format, self.compression) not in _SUFFIXES:
            allowed = [str(c) for f, c in _SUFFIXES if f is self.format]
            raise InvalidValueError(
                "encoding.compression", str(self.compression), " or ".join(allowed)
            )

    @property
    def suffix(self) -> str:
        """File name ending, without a leading dot."""
        return _SUFFIXES[self.format, self.compression]
