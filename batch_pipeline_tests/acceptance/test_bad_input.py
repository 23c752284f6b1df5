"""Operator errors and bad files: one clear message, the right exit code, no partial output."""

import gzip
import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batch_pipeline.model.location import to_uri
from batch_pipeline_tests.acceptance.sandbox import (
    CompletedCommand,
    Sandbox,
    json_records,
    manifests,
    unaccounted_files,
)
from batch_pipeline_tests.proofs import Figures

CAP_SYS_ADMIN = 21
GOOD = b"id,name\n1,one\n2,two\n"
SMALL_LIMIT_BYTES = 2 * 2**20


def _may_mount() -> bool:
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    [effective] = [line for line in status.read_text().splitlines() if line.startswith("CapEff:")]
    return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)


# Each file is a batch of its own between good ones; the words are in its error message. More kinds
# are tested with the readers.
BAD_FILES = {
    "open_quote": (b'id,name\n1,one\n2,"two\n', ["line 3"]),
    "too_few_fields": (b"id,name\n1,one\n2\n", ["line 3", "1", "2"]),
    "truncated_gzip": (gzip.compress(GOOD * 500)[:-20], ["gzip"]),
    "not_utf8": (b"id,name\n1,one\n2,\xe9t\xe9\n", ["UTF-8", "line 3"]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A run over many streams, most of them with an error, and a run after a repair."""

    sandbox: Sandbox
    first: CompletedCommand
    accepted: dict[str, Any]
    second: CompletedCommand

    def result(self, stream: str, *, of_second: bool = False) -> dict[str, Any]:
        """Return the result of a stream in one of the runs."""
        results = json.loads((self.second if of_second else self.first).stdout)["streams"]
        [result] = [result for result in results if result["stream"] == stream]
        return dict(result)


@pytest.fixture(scope="module")
def runs(shared_sandbox: Sandbox, warm_spark: str) -> Iterator[Runs]:
    """The sandbox after both runs."""
    sandbox = shared_sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    bad = {
        f"{2 * number:02}-{kind}": content
        for number, (kind, (content, _)) in enumerate(BAD_FILES.items(), start=1)
    }
    good = {f"{number:02}-good": GOOD for number in range(1, 2 * len(bad) + 2, 2)}
    _land(sandbox, "bad", good | bad)
    _land(sandbox, "touched", dict.fromkeys(["a", "changed", "removed", "z"], GOOD))
    assert sandbox.json_of("plan", "touched")["items_registered"] == 4
    (sandbox.landing("touched") / "changed.csv").write_bytes(b"id,name\n3,three\n")
    (sandbox.landing("touched") / "removed.csv").unlink()
    sandbox.write_stream("no_landing")
    _land(sandbox, "root_is_a_file", {"a": GOOD})
    sandbox.storage("root_is_a_file").parent.mkdir(exist_ok=True)
    sandbox.storage("root_is_a_file").write_text("not a folder")
    _land(sandbox, "fine", {"a": GOOD})
    (sandbox.landing("fine") / "link.csv").symlink_to(sandbox.folder / "nowhere.csv")
    with _disk(sandbox, "full_disk", "size=1m"), _disk(sandbox, "read_only", "ro"):
        first = sandbox.run("run", "--json")
        accepted = sandbox.json_of("plan", "touched", "--accept-changed")
        second = sandbox.run("run", "--json", "touched")
        yield Runs(sandbox=sandbox, first=first, accepted=accepted, second=second)


def test_each_bad_file_fails_its_batch_with_one_message(runs: Runs) -> None:
    """Configuration errors of other streams determine the exit code."""
    assert runs.first.returncode == 1
    assert "Traceback" not in runs.first.stderr
    result = runs.result("bad")
    errors = {batch["batch_id"]: batch["error"] for batch in result["failed"]}
    for number, (kind, (_, messages)) in enumerate(BAD_FILES.items(), start=1):
        error = errors[_key(2 * number)]
        path, _, details = error.partition(".csv")
        assert path.endswith(str(runs.sandbox.landing("bad") / f"{2 * number:02}-{kind}"))
        assert [words for words in messages if words not in details] == []
        assert "of this batch" in error
        assert "plan bad --accept-changed" in error
        assert runs.first.stderr.count(error) == 1
    last = 2 * len(BAD_FILES) + 1
    assert result["error"] is None
    assert [*errors] == [_key(number) for number in range(2, last, 2)]
    published = [batch["batch_id"] for batch in result["published"]]
    assert published == [_key(number) for number in range(1, last + 1, 2)]


@pytest.mark.parametrize("stream", ["bad", "touched", "fine"])
def test_bad_input_leaves_no_partial_files(runs: Runs, stream: str) -> None:
    assert manifests(runs.sandbox.storage(stream))
    assert unaccounted_files(runs.sandbox.storage(stream)) == []


def test_changed_or_removed_file_fails_its_batch_until_accepted(runs: Runs) -> None:
    """If only batches failed, the exit code is 3."""
    first, second = runs.result("touched"), runs.result("touched", of_second=True)
    errors = {batch["batch_id"]: batch["error"] for batch in first["failed"]}
    assert first["files_changed"] == 1
    assert "changed since it was registered: size 20 -> 16 B" in errors[_key(2)]
    assert "touched/removed.csv: does not exist" in errors[_key(3)]
    assert [batch["batch_id"] for batch in first["published"]] == [_key(1), _key(4)]
    assert runs.accepted["changes_accepted"] == 1
    [published] = second["published"]
    assert (published["batch_id"], published["attempt"]) == (_key(2), 2)
    assert runs.second.returncode == 3
    assert [batch["attempts"] for batch in second["failed"]] == [2]
    names = [record["name"] for record in json_records(runs.sandbox.storage("touched"))]
    assert names == ["one", "two", "three", "one", "two"]


def test_missing_landing_or_invalid_storage_fails_only_its_stream(runs: Runs) -> None:
    """A dangling link in a landing folder is ignored."""
    error = runs.result("no_landing")["error"]
    assert f"no_landing: landing folder {to_uri(runs.sandbox.landing('no_landing'))}" in error
    assert "no such file or directory" in error
    assert "Create it, or correct `source` in the stream file" in error
    assert error in runs.first.stderr
    result, root = runs.result("root_is_a_file"), runs.sandbox.storage("root_is_a_file")
    assert f"Storage {to_uri(root)} cannot be written" in result["error"]
    assert result["error"] in runs.first.stderr
    assert result["published"] == []
    assert root.read_text() == "not a folder"
    assert runs.result("fine")["files_found"] == 1


if _may_mount():

    @pytest.mark.guarantee("G3")
    def test_full_disk_fails_its_stream_and_publishes_nothing(runs: Runs, figures: Figures) -> None:
        result = runs.result("full_disk")
        assert "no space left on device" in result["error"].lower()
        assert "partial files were removed" in result["error"]
        assert result["published"] == []
        root = runs.sandbox.storage("full_disk")
        assert [path for path in root.rglob("*") if path.is_file()] == []
        figures(full_disks=1)

    @pytest.mark.guarantee("G3")
    def test_read_only_disk_fails_its_stream_before_an_attempt(
        runs: Runs, figures: Figures
    ) -> None:
        result, root = runs.result("read_only"), runs.sandbox.storage("read_only")
        assert f"Storage {to_uri(root)} cannot be written" in result["error"]
        assert "read-only file system" in result["error"].lower()
        assert result["published"] == result["failed"] == []
        figures(read_only_disks=1)


@pytest.mark.long
@pytest.mark.guarantee("G3")
def test_file_size_limit_publishes_nothing(
    sandbox: Sandbox, database_url: str, figures: Figures
) -> None:
    _land_noise(sandbox, "limited")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_LIMIT_BYTES, SMALL_LIMIT_BYTES))

    sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    result = sandbox.run("run", preexec_fn=limit)
    assert result.returncode == 1, result.stderr
    assert "file too large" in result.stderr.lower()
    assert "Nothing was published" in result.stderr
    assert "Traceback" not in result.stderr
    root = sandbox.storage("limited")
    assert [path for path in root.rglob("*") if path.is_file()] == []
    figures(full_disks=1)


def _land(sandbox: Sandbox, name: str, files: dict[str, bytes]) -> None:
    """Write a stream with a batch per file and its files, whose names get `.csv`."""
    sandbox.write_stream(name, batch={"max_count": 1})
    sandbox.land(name, {f"{file_name}.csv": content for file_name, content in files.items()})


def _land_noise(sandbox: Sandbox, name: str) -> None:
    """Land 8 MiB of text that does not compress below half."""
    sandbox.write_stream(name)
    sandbox.landing(name).mkdir(parents=True)
    draw = Random(1)  # noqa: S311 - not for security
    lines = (f"{number},{draw.randbytes(2_000).hex()}\n" for number in range(2_000))
    (sandbox.landing(name) / "noise.csv").write_text("id,noise\n" + "".join(lines))


@contextmanager
def _disk(sandbox: Sandbox, name: str, options: str) -> Iterator[None]:
    """Mount the storage root of a stream during the block, if this user may mount."""
    if not _may_mount():
        yield
        return
    _land_noise(sandbox, name)
    root = sandbox.storage(name)
    root.mkdir(parents=True)
    unmount = ["umount", "--lazy", str(root)]  # a process may still have a file open there
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(unmount, check=True)


def _key(number: int) -> str:
    return f"{number:08}-{number:08}"
