"""Stream files: YAML that is read into a stream, or refused with file, line and reason."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import yaml

from batch_pipeline.domain.errors import StreamFileError
from batch_pipeline.settings.stream_file import read_stream_file
from batch_pipeline_tests.guarantees.fuzz.harness.json_mutations import json_mutated
from batch_pipeline_tests.guarantees.fuzz.harness.mutations import mutated
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, expect
from batch_pipeline_tests.unit import test_stream_file, test_stream_file_tables

_HEAD = "type: batch_pipeline.BatchStream\nattributes:\n  stream: orders\n"
_SOURCE = "  source: {uri: ./landing}\n"
_TARGETS = """\
  key_properties: [id]
  targets:
    dw: {postgres: {conn: '${DW}', schema: sales, table: o, mode: upsert}}
    lake: {command: target-csv --log 'a b', config: {port: 5, list: [$NAME]}, timeout: 90s}
"""
_LAUGHS = "".join(
    f"  b{level}: &b{level} [{', '.join([f'*b{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
PLAIN = [
    test_stream_file.MINIMAL,
    test_stream_file.FULL,
    test_stream_file_tables.FULL,
    _HEAD + _SOURCE + _TARGETS,
]
ODD = [
    _HEAD + _SOURCE + "  b0: &b0 [x, x]\n" + _LAUGHS + "  batch: {max_count: *b8}\n",
    _HEAD + _SOURCE + "  b0: &b0 [x, x]\n" + _LAUGHS + "  select: *b8\n",
    _HEAD + _SOURCE + "  stream_maps: &a {orders: *a}\n",
    _HEAD + _SOURCE + "  batch: &a\n    <<: *a\n",
    _HEAD + _SOURCE + "  schema: !!python/object/apply:os.getcwd []\n",
    _HEAD + _SOURCE + "  batch: {max_wait: 2026-01-01, max_count: 0b11, max_weight: 1:30}\n",
    _HEAD + _SOURCE + "  batch: {max_weight: !!int '', max_wait: !!timestamp x}\n",
    _HEAD
    + _SOURCE
    + "  select: !!set {a, b}\n  key_properties: !!omap [a: 1]\n  x: !!binary Zg==\n",
    _HEAD + _SOURCE + "  lineage: true\n  ? [a, b]\n  : c\n",
    "%YAML 1.1\n---\n" + _HEAD + _SOURCE + "...\n---\nx\n",
]


def corpus(_number: int) -> list[bytes]:
    """Stream files as they are in the documentation, and such as nobody should write."""
    return [one.encode() for one in [*PLAIN, *PLAIN, *ODD]]


def made(random: Random, found: Sequence[bytes]) -> bytes:
    """Spoil a file as text, or as a value: JSON is YAML."""
    if random.random() < 0.4:
        return json_mutated(random, [yaml.safe_load(one) for one in PLAIN])
    return mutated(random, found)


def open_check(folder: Path) -> Check:
    """A stream has the name that its file says, and a refusal names the file."""
    path = folder / "defs.yaml"

    def check(data: bytes) -> Outcome:
        path.write_bytes(data)
        try:
            stream = read_stream_file(path)
        except StreamFileError as error:
            told = str(error)
            expect(told.startswith(str(path)) and len(told) < 20_000, told[:200])
            return Outcome.REFUSED
        said = yaml.safe_load(data.decode("utf-8-sig"))["attributes"]
        expect(stream.name == said["stream"], stream.name, said["stream"])
        expect(list(stream.key_properties) == said.get("key_properties", []), said)
        json.dumps(str(stream))
        return Outcome.READ

    return check
