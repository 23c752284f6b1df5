"""Which BATCH files targets read is found by looking into their environments, never by trying."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.singer.running import look_inside
from batch_pipeline.singer.running.reading import Memory, Reading, reading_of

JSONL = Encoding(format=Format.JSONL, compression=Compression.GZIP)
ZSTD = Encoding(format=Format.JSONL, compression=Compression.ZSTD)
PARQUET = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
ARROW = Encoding(format=Format.ARROW, compression=Compression.NONE)
BATCH_SINK = """
from singer_sdk.sinks import BatchSink, RecordSink, SQLSink
from singer_sdk.target_base import Target
"""
GOOD = """
class Sink(BatchSink):
    def process_batch(self, context): ...
class TargetX(Target):
    name = "target-x"
    default_sink_class = Sink
"""
RECORD_SINK = """
class Sink(RecordSink):
    def process_record(self, record, context): ...
class TargetX(Target):
    name = "target-x"
    default_sink_class = Sink
"""
ELSEWHERE = GOOD.replace(
    "class TargetX", "    def process_record(self, record, context): ...\nclass TargetX"
)
OWN_FILES = GOOD.replace(
    "class TargetX", "    def process_batch_files(self, encoding, files): ...\nclass TargetX"
)
CHOSEN = GOOD + "    def get_sink_class(self, stream_name): return Sink\n"
NO_SDK = "class TargetX:\n    def cli(): ...\n"
BROKEN = "raise RuntimeError('no')"


class _Memory:
    """Remembers in a dictionary, and counts."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Mapping[str, Any]] = {}

    def memory(self) -> Memory:
        """Give the two calls."""
        return Memory(known=lambda *key: self.kept.get(key), remember=self._remember)

    def _remember(self, command: str, version: str, verdict: Mapping[str, Any]) -> None:
        self.kept[command, version] = verdict


def install(folder: Path, code: str, *, entry: str = "target_x:TargetX.cli") -> Path:
    """Make an environment beside ours, which sees our packages, with one target in it."""
    venv.create(folder / "v", symlinks=True)
    (site,) = (folder / "v").glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(ours))
    (site / "target_x.py").write_text(BATCH_SINK * ("class Target:" not in code) + code)
    known = site / "target_x-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: target-x\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(f"[console_scripts]\ntarget-x = {entry}\n")
    script = folder / "v" / "bin" / "target-x"
    script.write_text(f"#!{folder}/v/bin/python\nimport target_x\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("code", "reads", "why"),
    [
        (GOOD, True, "Sink writes whole batches"),
        (OWN_FILES, True, "Sink reads BATCH files itself"),
        (RECORD_SINK, False, "Sink takes record by record and would lose BATCH messages"),
        (ELSEWHERE, False, "Sink puts records elsewhere than where BATCH files go"),
        (CHOSEN, False, "its sinks are chosen when it runs"),
        (BROKEN, False, "looking into "),
    ],
)
def test_reading_of_a_target_tells_by_its_classes(
    tmp_path: Path, code: str, reads: bool, why: str
) -> None:
    """Expect BATCH only for sinks whose own code would get the files."""
    memory = _Memory()
    reading = reading_of([str(install(tmp_path, code))], memory.memory())
    assert reading.reads([JSONL]) is reads
    assert reading.why.startswith(why)
    assert bool(memory.kept) is (code != BROKEN)


def test_reading_of_a_target_that_is_known_is_not_looked_up_again(tmp_path: Path) -> None:
    """Expect the verdict on this version, although the code says something else by now."""
    script, memory = install(tmp_path, GOOD), _Memory()
    first = reading_of([str(script)], memory.memory())
    ((command, version),) = memory.kept
    assert command == str(script)
    assert version.startswith("target-x 1.0, singer-sdk 0.54.")
    (module,) = (tmp_path / "v").glob("lib/python*/site-packages/target_x.py")
    module.write_text(BROKEN)
    assert reading_of([str(script)], memory.memory()) == first


def test_reading_of_a_function_as_entry_point_finds_the_only_target(tmp_path: Path) -> None:
    """Expect the class of the module where the entry point is a function."""
    script = install(tmp_path, GOOD + "def main(): ...\n", entry="target_x:main")
    assert reading_of([str(script)], _Memory().memory()).reads([JSONL, PARQUET])


@pytest.mark.parametrize(
    "command", [["no-such-target"], ["/bin/cat"], [sys.executable, "-m", "target_x"]]
)
def test_reading_of_what_cannot_be_looked_into_is_nothing(command: list[str]) -> None:
    """Expect RECORD messages for what nobody can know."""
    reading = reading_of(command, _Memory().memory())
    assert reading.encodings == ()
    assert "cannot be looked into" in reading.why


def test_reading_of_a_script_that_no_package_brought_is_nothing(tmp_path: Path) -> None:
    """Expect a Python script without a package to get records."""
    script = tmp_path / "target-y"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    reading = reading_of([str(script)], _Memory().memory())
    assert (reading.encodings, reading.why) == ((), "no installed package has this command")


def test_reading_of_a_script_with_a_long_path_finds_its_python(tmp_path: Path) -> None:
    """Expect the first lines that installers write where a path has a space."""
    folder = tmp_path / "a b"
    folder.mkdir()
    script = install(folder, GOOD)
    python = folder / "v" / "bin" / "python"
    script.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport target_x\n")
    assert reading_of([str(script)], _Memory().memory()).reads([JSONL])


def test_reading_of_a_target_without_the_sdk_is_nothing(tmp_path: Path) -> None:
    """Expect records for a target of another making."""
    script = install(tmp_path, NO_SDK)
    for path in (tmp_path / "v").glob("lib/python*/site-packages/ours.pth"):
        path.unlink()
    reading = reading_of([str(script)], _Memory().memory())
    assert (reading.encodings, reading.why) == ((), "it is not made with the Singer SDK")


def test_reading_knows_encodings_by_format_or_by_both() -> None:
    """Expect all encodings asked for to be readable, or none of them counts."""
    reading = Reading(encodings=("jsonl+gzip", "parquet"))
    assert reading.reads([JSONL, PARQUET])
    assert not reading.reads([JSONL, ZSTD])
    assert not reading.reads([ARROW])
    assert Reading.from_json(json.loads(json.dumps(reading.to_json()))) == reading


def test_look_inside_stands_on_nothing_of_ours() -> None:
    """Expect a file that the Python of a target can run by itself."""
    path = Path(look_inside.__file__)
    command = [sys.executable, "-I", "-S", "-c", path.read_text(), "version", "no-such-command"]
    answer = subprocess.run(command, capture_output=True, check=True, env=dict(os.environ))
    assert json.loads(answer.stdout) == {"why": "no installed package has this command"}


def test_reading_knows_the_stores_that_a_target_reaches() -> None:
    """Expect files of disks to be reached by all, objects by their scheme only."""
    plain = Reading.from_json({"encodings": ["jsonl+gzip"], "why": "kept by a release before"})
    with_s3 = Reading(encodings=("jsonl+gzip",), stores=("s3",))
    assert Reading.from_json(with_s3.to_json()) == with_s3
    uris = ["file:///a.gz", "s3://bucket/a.gz"]
    assert (plain.reaches(uris[:1]), plain.reaches(uris)) == (True, False)
    assert (with_s3.reaches(uris), with_s3.reaches(["gs://bucket/a.gz"])) == (True, False)
