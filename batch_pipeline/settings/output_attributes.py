"""The keys of a stream file that say what is written where: encoding, storage, part files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.stream import PartLimits, Storage
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import (
    Count,
    Duration,
    Location,
    Size,
    absolute_uri,
)


def alternatives(words: Iterable[str]) -> str:
    """Return words as text, such as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


_TITLES = alternatives(part_format.title for part_format in PART_FORMATS.values())
_COMPRESSIONS = "; ".join(
    f"of {file_format} {alternatives(part_format.compressions)}"
    for file_format, part_format in PART_FORMATS.items()
)


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(
        Format.JSONL,
        description=f"What a BATCH file is: {_TITLES} (default jsonl).",
    )
    compression: Compression | None = Field(
        None,
        description=f"O{_COMPRESSIONS[1:]} (default: the first of these).",
    )
    level: Annotated[int, Field(strict=True)] | None = Field(
        None, description="gzip 0 to 9, zstd 1 to 19 (default: the fastest that is worth it)."
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Encoding:
        """Give the domain's form."""
        compression = self.compression or PART_FORMATS[self.format].compressions[0]
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
