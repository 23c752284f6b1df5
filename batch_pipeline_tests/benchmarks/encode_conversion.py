"""Which conversions there are. Values only."""

from dataclasses import dataclass

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline_tests.benchmarks.encode_workload import Source

JSONL_GZIP = Encoding(format=Format.JSONL, compression=Compression.GZIP)
PARQUET_ZSTD = Encoding(format=Format.PARQUET, compression=Compression.ZSTD, level=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """From generated files of one kind to one encoding."""

    source: Source
    encoding: Encoding

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return f"{self.source}-{self.encoding.format}"

    def is_done_by(self, way: str) -> bool:
        """Tell whether a way takes part: the SDK's batcher knows but one conversion."""
        return way != "sdk" or self.name == "jsonl-jsonl"


CONVERSIONS = {
    one.name: one
    for one in (
        Conversion(source=Source.JSONL, encoding=JSONL_GZIP),
        Conversion(source=Source.JSONL, encoding=PARQUET_ZSTD),
        Conversion(source=Source.CSV, encoding=PARQUET_ZSTD),
        Conversion(source=Source.PARQUET, encoding=JSONL_GZIP),
        Conversion(source=Source.TYPED, encoding=JSONL_GZIP),
    )
}
