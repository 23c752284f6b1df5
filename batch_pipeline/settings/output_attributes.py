"""The keys of a stream file that say what is written where: encoding, storage, part files."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.stream import PartLimits, Storage
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import (
    Count,
    Duration,
    Location,
    Size,
    absolute_uri,
)

_USUAL = {
    Format.JSONL: Compression.GZIP,
    Format.PARQUET: Compression.SNAPPY,
    Format.ARROW: Compression.NONE,
}


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(
        Format.JSONL,
        description="What a BATCH file is: JSON lines, parquet or Arrow IPC (default jsonl).",
    )
    compression: Compression | None = Field(
        None,
        description="Of jsonl gzip, zstd or none; of parquet snappy, zstd, gzip or none; of arrow "
        "none or zstd (default: the first of these).",
    )
    level: Annotated[int, Field(strict=True)] | None = Field(
        None, description="gzip 0 to 9, zstd 1 to 19 (default: the fastest that is worth it)."
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Encoding:
        """Give the domain's form."""
        compression = self.compression or _USUAL[self.format]
        return Encoding(format=self.format, compression=compression, level=self.level)


class StorageAttributes(Section):
    """Where part files go; Singer's `batch_config.storage`."""

    root: Location = Field(
        "./batches",
        description="Where part files go: a folder, by a file:///… URI or by a path, relative to "
        "the stream file; or s3://bucket/prefix (default ./batches).",
    )
    prefix: str = Field("", description="Start of every file name (default: none).")
    keep_superseded: Duration | None = Field(
        None,
        description="How long files of a generation stay once a newer one is published, at least "
        "24h (seconds, or with a unit such as 30d; default: for ever).",
    )
    keep_loaded: Duration | None = Field(
        None,
        description="How long files of a generation stay once all `targets` have it, at least 24h "
        "(seconds, or with a unit such as 30d; default: for ever).",
    )
    keep_quarantine: Duration | None = Field(
        None,
        description="How long quarantine files stay once their generation is published, at least "
        "24h (seconds, or with a unit such as 90d; default: as long as its other files).",
    )

    def check(self) -> None:
        self.to_domain(Path("/"))

    def to_domain(self, base: Path) -> Storage:
        """Give the domain's form, with relative paths starting at `base`."""
        return Storage(
            root=absolute_uri(self.root, base),
            prefix=self.prefix,
            keep_superseded=self.keep_superseded,
            keep_loaded=self.keep_loaded,
            keep_quarantine=self.keep_quarantine,
        )


class PartFilesAttributes(Section):
    """Bounds of one part file."""

    max_records: Count = Field(100_000, description="Records, at most (default 100000).")
    max_bytes: Annotated[Size, Field(ge=1)] = Field(
        128 * 2**20,
        description="Uncompressed size, at most (bytes, or with a unit; default 128MiB).",
    )

    def to_domain(self) -> PartLimits:
        """Give the domain's form."""
        return PartLimits(max_records=self.max_records, max_bytes=self.max_bytes)
