"""Which BATCH files targets read is decided by their classes, without sending them anything."""

import sys
import venv
from pathlib import Path

import pytest

from batch_pipeline.load.singer_capabilities import Capabilities, probe
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.manifest import Manifest
from batch_pipeline_tests.factories import manifest, part_file

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


def of(encoding: Encoding, *uris: str) -> Manifest:
    """A manifest of part files with these URIs."""
    parts = tuple(part_file(uri=uri) for uri in uris)
    return manifest(encoding=encoding, part_files=parts)


@pytest.mark.parametrize(
    ("code", "reads", "reason"),
    [
        (GOOD, True, "Sink writes whole batches"),
        (OWN_FILES, True, "Sink reads BATCH files itself"),
        (RECORD_SINK, False, "Sink takes record by record and would lose BATCH messages"),
        (ELSEWHERE, False, "Sink puts records elsewhere than where BATCH files go"),
        (CHOSEN, False, "its sinks are chosen when it runs"),
        (BROKEN, False, "its classes cannot be read (CalledProcessError)"),
    ],
)
def test_target_is_judged_by_the_classes_that_would_get_the_files(
    tmp_path: Path, code: str, reads: bool, reason: str
) -> None:
    target = probe([str(install(tmp_path, code))])
    assert target.can_read(of(JSONL)) is reads
    assert target.reason.startswith(reason)


def test_target_whose_entry_point_is_a_function_is_the_only_class_of_its_module(
    tmp_path: Path,
) -> None:
    script = install(tmp_path, GOOD + "def main(): ...\n", entry="target_x:main")
    target = probe([str(script)])
    assert target.can_read(of(JSONL))
    assert target.can_read(of(PARQUET))


@pytest.mark.parametrize(
    "command", [["no-such-target"], ["/bin/cat"], [sys.executable, "-m", "target_x"]]
)
def test_command_that_is_no_script_of_python_reads_nothing(command: list[str]) -> None:
    target = probe(command)
    assert target.encodings == ()
    assert "is not a script of a Python environment" in target.reason


def test_script_that_no_package_installed_reads_nothing(tmp_path: Path) -> None:
    script = tmp_path / "target-y"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    target = probe([str(script)])
    assert (target.encodings, target.reason) == ((), "no installed package has this command")


def test_script_with_a_long_path_names_its_python_in_the_second_line(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    script = install(folder, GOOD)
    python = folder / "v" / "bin" / "python"
    script.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport target_x\n")
    assert probe([str(script)]).can_read(of(JSONL))


def test_target_without_the_sdk_and_without_this_package_reads_nothing(tmp_path: Path) -> None:
    script = install(tmp_path, NO_SDK)
    for path in (tmp_path / "v").glob("lib/python*/site-packages/ours.pth"):
        path.unlink()
    target = probe([str(script)])
    assert (target.encodings, target.reason) == ((), "it is not made with the Singer SDK")


def test_capabilities_name_encodings_by_format_or_with_the_compression() -> None:
    target = Capabilities(encodings=("jsonl+gzip", "parquet"), reason="")
    read = [target.can_read(of(one)) for one in (JSONL, PARQUET, ZSTD, ARROW)]
    assert read == [True, True, False, False]


def test_capabilities_include_files_of_disks_and_of_named_stores() -> None:
    plain = Capabilities(encodings=("jsonl+gzip",), reason="")
    with_s3 = Capabilities(encodings=("jsonl+gzip",), stores=("s3",), reason="")
    disk, store = of(JSONL, "file:///a.gz"), of(JSONL, "file:///a.gz", "s3://bucket/a.gz")
    assert (plain.can_read(disk), plain.can_read(store)) == (True, False)
    assert (with_s3.can_read(disk), with_s3.can_read(store)) == (True, True)


def test_capabilities_include_part_files_of_every_kind_that_the_target_opens() -> None:
    target = Capabilities(encodings=("jsonl+gzip",), reason="")
    assert target.can_read(of(JSONL, "/a.gz", "file:///b.gz"))
