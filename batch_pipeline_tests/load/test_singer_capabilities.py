"""Detecting from the classes of a target which BATCH files it can read, without running it."""

import sys
import venv
from pathlib import Path

import pytest

from batch_pipeline.load.singer_capabilities import Capabilities, _encodings, _interpreter, probe
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.manifest import Manifest
from batch_pipeline_tests.factories import manifest, part_file
from batch_pipeline_tests.published_files import JSONL, PARQUET

ZSTD = Encoding(format=Format.JSONL, compression=Compression.ZSTD)
ARROW = Encoding(format=Format.ARROW, compression=Compression.NONE)
IMPORTS = """
from singer_sdk.sinks import BatchSink, RecordSink
from singer_sdk.target_base import Target
"""
BATCH_SINK_TARGET = """
class Sink(BatchSink):
    def process_batch(self, context): ...
class TargetX(Target):
    name = "target-x"
    default_sink_class = Sink
"""
RECORD_SINK_TARGET = """
class Sink(RecordSink):
    def process_record(self, record, context): ...
class TargetX(Target):
    name = "target-x"
    default_sink_class = Sink
"""
BATCH_AND_RECORD_SINK = BATCH_SINK_TARGET.replace(
    "class TargetX", "    def process_record(self, record, context): ...\nclass TargetX"
)
BATCH_FILE_SINK = BATCH_SINK_TARGET.replace(
    "class TargetX", "    def process_batch_files(self, encoding, files): ...\nclass TargetX"
)
DYNAMIC_SINK = BATCH_SINK_TARGET + "    def get_sink_class(self, stream_name): return Sink\n"
NO_SDK = "class TargetX:\n    def cli(): ...\n"
BROKEN = "raise RuntimeError('no')"


def install(folder: Path, code: str, *, entry: str = "target_x:TargetX.cli") -> Path:
    """Create a virtual environment that sees our packages and contains one target."""
    venv.create(folder / "v", symlinks=True)
    (site,) = (folder / "v").glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(ours))
    (site / "target_x.py").write_text(IMPORTS * ("class Target:" not in code) + code)
    dist_info = site / "target_x-1.0.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: target-x\nVersion: 1.0\n")
    (dist_info / "entry_points.txt").write_text(f"[console_scripts]\ntarget-x = {entry}\n")
    script = folder / "v" / "bin" / "target-x"
    script.write_text(f"#!{folder}/v/bin/python\nimport target_x\n")
    script.chmod(0o755)
    return script


def manifest_of(encoding: Encoding, *uris: str) -> Manifest:
    """Return a manifest of part files with these URIs."""
    return manifest(encoding=encoding, part_files=tuple(part_file(uri=uri) for uri in uris))


@pytest.mark.parametrize(
    ("code", "reads", "reason"),
    [
        (BATCH_SINK_TARGET, True, "Sink writes whole batches"),
        (BATCH_FILE_SINK, True, "Sink reads BATCH files itself"),
        (RECORD_SINK_TARGET, False, "Sink processes single records and would lose BATCH messages"),
        (BATCH_AND_RECORD_SINK, False, "Sink writes records elsewhere than BATCH files"),
        (DYNAMIC_SINK, False, "its sinks are chosen when it runs"),
    ],
)
def test_capabilities_depend_on_the_sink_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reads: bool, reason: str
) -> None:
    install(tmp_path, code)
    (site,) = (tmp_path / "v").glob("lib/python*/site-packages")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "target_x", raising=False)
    encodings, why = _encodings("target-x")
    assert ("jsonl+gzip" in encodings) is reads
    assert why == reason


def test_target_whose_module_cannot_be_imported_reads_nothing(tmp_path: Path) -> None:
    target = probe([str(install(tmp_path, BROKEN))])
    assert target == Capabilities(reason="its classes cannot be read (CalledProcessError)")


def test_modules_in_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console script does not import them either."""
    script = install(tmp_path, BATCH_SINK_TARGET)
    (tmp_path / "singer_sdk.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    assert probe([str(script)]).reason == "Sink writes whole batches"


def test_function_entry_point_uses_the_only_target_class_of_its_module(tmp_path: Path) -> None:
    script = install(tmp_path, BATCH_SINK_TARGET + "def main(): ...\n", entry="target_x:main")
    target = probe([str(script)])
    assert target.can_read(manifest_of(JSONL))
    assert target.can_read(manifest_of(PARQUET))
    assert target.reason == "Sink writes whole batches"


def test_command_without_a_python_package_reads_nothing(tmp_path: Path) -> None:
    for command in (["no-such-target"], ["/bin/cat"], [sys.executable, "-m", "target_x"]):
        target = probe(command)
        assert target.encodings == ()
        assert "is not a script of a Python environment" in target.reason
    script = tmp_path / "target-y"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    target = probe([str(script)])
    assert (target.encodings, target.reason) == ((), "no installed package has this command")


def test_python_in_the_second_line_of_a_script_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    python = folder / "python3"
    python.symlink_to(sys.executable)
    script = folder / "target-x"
    for quote in ('"', "'"):  # as pip and uv write it
        script.write_text(f"#!/bin/sh\n'''exec' {quote}{python}{quote} \"$0\" \"$@\"\n' '''\n")
        assert _interpreter(script) == str(python)


def test_target_in_an_environment_without_the_sdk_reads_nothing(tmp_path: Path) -> None:
    script = install(tmp_path, NO_SDK)
    for path in (tmp_path / "v").glob("lib/python*/site-packages/ours.pth"):
        path.unlink()
    target = probe([str(script)])
    assert (target.encodings, target.reason) == ((), "it is not built with the Singer SDK")


def test_encodings_match_by_format_or_with_compression() -> None:
    target = Capabilities(encodings=("jsonl+gzip", "parquet"), reason="")
    readable = [target.can_read(manifest_of(one)) for one in (JSONL, PARQUET, ZSTD, ARROW)]
    assert readable == [True, True, False, False]


def test_files_in_object_stores_require_the_store() -> None:
    plain = Capabilities(encodings=("jsonl+gzip",), reason="")
    with_s3 = Capabilities(encodings=("jsonl+gzip",), stores=("s3",), reason="")
    disk = manifest_of(JSONL, "/a.gz", "file:///a.gz")
    store = manifest_of(JSONL, "file:///a.gz", "s3://bucket/a.gz")
    assert (plain.can_read(disk), plain.can_read(store)) == (True, False)
    assert (with_s3.can_read(disk), with_s3.can_read(store)) == (True, True)
