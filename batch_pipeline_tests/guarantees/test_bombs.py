"""Decompression bombs are refused early."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import BatchFile, check
from batch_pipeline_tests.guarantees.inputs.bombs import BOMBS, MIB, SHORT_FORM
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

MAX_MIB = 400  # in addition to the program itself
EXPANSION = "`read_limits.max_expansion`"
REASONS = dict.fromkeys(BOMBS, EXPANSION) | {
    "nested": "is nested too deeply",
    "avro block": "expands to more than 128 MiB",
    "avro blocks": "expands too much",
    "avro count": "lacks some of its records",
}


def test_bombs_are_refused_with_little_memory(
    tmp_path: Path, figures: Figures, *, long_form: bool
) -> None:
    """The reason names the limit, and memory stays at the level of an ordinary file."""
    names, paths = [*BOMBS] if long_form else [*SHORT_FORM], []
    for name in names:
        path = tmp_path / name
        path.write_bytes(BOMBS[name]())
        assert path.stat().st_size < 2 * MIB, name
        paths.append(str(path))
    command = [sys.executable, "-m", "batch_pipeline_tests.guarantees.inputs.bombs", *paths]
    outcomes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    reasons = {name: outcomes[name][0] for name in names}
    assert {name: text for name, text in reasons.items() if REASONS[name] not in text} == {}
    _, open_quote = outcomes.pop("cell", (None, 0))  # it is last, because a peak never shrinks
    peak = max(mib for _, mib in outcomes.values())
    assert peak < MAX_MIB, outcomes
    assert open_quote < 1_000
    figures(bombs=len(names), peak_mib=float(max(peak, open_quote)))


@pytest.mark.parametrize("kind", ["gzip", "zstd", "parquet", "parquet texts", "parquet items"])
def test_bombs_in_batch_messages_are_refused(tmp_path: Path, kind: str, figures: Figures) -> None:
    path, key = tmp_path / "bomb", "id"
    lines = b'{"id": 1, "text": "%s"}\n' % (b"x" * MIB) * 16
    encoding = BatchEncoding(format=Format.JSONL, compression=Compression.GZIP)
    match kind:
        case "gzip":
            path.write_bytes(gzip.compress(lines, 9, mtime=0) * 64)
        case "zstd":
            encoding = replace(encoding, compression=Compression.ZSTD)
            path.write_bytes(pa.compress(lines, codec="zstd", asbytes=True) * 64)
        case "parquet":
            encoding = BatchEncoding(format=Format.PARQUET, compression=None)
            table = pa.table({"id": [1] * 100, "text": ["x" * MIB] * 100})
            pq.write_table(table, path, compression="zstd", use_dictionary=False)
        case _:
            encoding, key = BatchEncoding(format=Format.PARQUET, compression=None), "a"
            path.write_bytes(BOMBS[kind]())
    message = BatchMessage(line=2, stream="orders", encoding=encoding, manifest=(str(path),))
    file = BatchFile(location=to_uri(path), path=path)
    limits = ReadLimits(max_record_bytes=64 * MIB)
    with pytest.raises(MessageError, match=r"250-fold .* \(`max_expansion`\)"):
        check(message, 0, file, keys=(key,), limits=limits)
    if kind == "gzip":
        path.write_bytes(gzip.compress(lines, 9, mtime=0) * 6)
        wide = replace(limits, max_expansion=5_000)
        assert check(message, 0, file, keys=("id",), limits=wide).records == 16 * 6
    figures(bombs=1)
