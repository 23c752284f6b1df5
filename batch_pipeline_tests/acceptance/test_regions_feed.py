"""A real feed: 1,781 daily files whose layout changes on the way, drained, added to, and killed."""

import json
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from batch_pipeline.defs.instance import open_instance
from batch_pipeline.defs.names import batches_key
from batch_pipeline.inventory import embedded
from batch_pipeline.settings.home import Home
from batch_pipeline.settings.stream_file import read_stream_file
from batch_pipeline_tests.acceptance.conftest import (
    REGIONS_ARCHIVE,
    Workplace,
    files_below,
    json_records,
    kill_group,
    manifests,
    names,
    part_files,
    sha256,
    wait_until,
)

FILES = 1_781
RECORDS = 37_401
SUM_OF_POSITIVES = 646_987_571
RECORDS_OF_LAST_DAY = 21
LAST_DAY = "dpc-covid19-ita-regioni-20250108.csv"
LATE_COLUMNS = {
    "totale_positivi_test_molecolare",
    "totale_positivi_test_antigenico_rapido",
    "tamponi_test_molecolare",
    "tamponi_test_antigenico_rapido",
    "codice_nuts_1",
    "codice_nuts_2",
}
FIRST_DAY_OF_NEW_LAYOUT = "2021-01-15"
KILLED_AT = ("claim.after_commit", "publish.before_commit", "pointer.before_link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Three runs: of all files but the last day's, after that one landed, and with nothing new.

    `files_before` and `files_after` are the files in storage around the third.
    """

    place: Workplace
    all_but_last: dict[str, Any]
    last_day: dict[str, Any]
    nothing_new: dict[str, Any]
    files_before: dict[str, tuple[int, int]]
    files_after: dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole feed in a folder."""
    folder = tmp_path_factory.mktemp("feed")
    with tarfile.open(REGIONS_ARCHIVE) as archive:
        for member in archive:
            if member.isfile() and not member.name.endswith("-latest.csv"):
                member.name = Path(member.name).name
                archive.extract(member, folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def feed(shared_workplace: Workplace, landing: Path, warm_spark: str) -> Feed:
    """The feed after its three runs, once as jsonl and once as parquet."""
    place = shared_workplace
    held_back = (landing / LAST_DAY).rename(place.folder / LAST_DAY)
    _write_streams(place, landing)
    all_but_last = _by_stream(place.told("run"))
    held_back.rename(landing / LAST_DAY)
    last_day = _by_stream(place.given(BATCH_PIPELINE_SPARK_REMOTE=warm_spark).told("run"))
    before = files_below(place.folder / "batches")
    nothing_new = _by_stream(place.told("run"))
    return Feed(
        place=place,
        all_but_last=all_but_last,
        last_day=last_day,
        nothing_new=nothing_new,
        files_before=before,
        files_after=files_below(place.folder / "batches"),
    )


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_run_on_the_feed_writes_every_record(feed: Feed, stream: str) -> None:
    """Expect all files found, all records written and none quarantined."""
    done = feed.all_but_last[stream]
    records = [manifest["records"] for manifest in done["published"]]
    assert (done["files_found"], done["items_registered"]) == (FILES - 1, FILES - 1)
    assert (done["failed"], done["error"]) == ([], None)
    assert sum(one["written"] for one in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(one["read"] for one in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(one["quarantined"] for one in records) == 0


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_run_after_one_more_file_takes_that_file_alone(feed: Feed, stream: str) -> None:
    """Expect one new batch of one item with the records of one day."""
    done = feed.last_day[stream]
    [published] = done["published"]
    assert (done["items_registered"], done["batches_planned"]) == (1, 1)
    assert published["batch_id"] == f"{FILES:012}-{FILES:012}"
    assert published["items"] == 1
    assert published["records"]["written"] == RECORDS_OF_LAST_DAY


def test_run_with_nothing_new_changes_nothing(feed: Feed) -> None:
    """Expect no item, no batch, and all files in storage as they were."""
    for done in feed.nothing_new.values():
        assert (done["files_found"], done["items_registered"]) == (FILES, 0)
        assert (done["batches_planned"], done["published"]) == (0, [])
    assert feed.files_after == feed.files_before


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_part_files_are_the_ones_that_the_manifests_describe(feed: Feed, stream: str) -> None:
    """Expect size and SHA-256 of every part file to be those of its manifest."""
    parts = list(part_files(feed.place.storage(stream)))
    assert sum(part["records"] for part, _ in parts) == RECORDS
    for part, path in parts:
        assert (path.stat().st_size, sha256(path)) == (part["size_bytes"], part["sha256"])


def test_records_read_back_from_jsonl_add_up(feed: Feed) -> None:
    """Expect the known number of records and the known sum, counted from the files themselves."""
    values = [record["totale_positivi"] for record in json_records(feed.place.storage("regions"))]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_records_read_back_from_parquet_add_up(feed: Feed) -> None:
    """Expect the same number and sum as in jsonl."""
    files = [path for _, path in part_files(feed.place.storage("regions_parquet"))]
    columns = [pq.read_table(path, columns=["totale_positivi"])[0].to_pylist() for path in files]
    values = [value for column in columns for value in column]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_records_from_before_the_layout_change_have_null_in_the_late_columns(feed: Feed) -> None:
    """Expect the six late columns empty in every older record, and in use later."""
    seen_later = set()
    older = 0
    for record in json_records(feed.place.storage("regions")):
        filled = {name for name in LATE_COLUMNS if record.get(name) is not None}
        if record["data"] < FIRST_DAY_OF_NEW_LAYOUT:
            older += 1
            assert filled == set()
        seen_later |= filled
    assert older == 326 * 21
    assert seen_later == LATE_COLUMNS


def test_cells_with_line_breaks_stay_one_record(feed: Feed) -> None:
    """Expect the two cells of the feed that hold a line break to hold it still."""
    broken = [
        value
        for record in json_records(feed.place.storage("regions"))
        for value in record.values()
        if isinstance(value, str) and "\n" in value
    ]
    assert len(broken) == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A home whose runs were killed and interrupted, and what the interrupted ones had to say."""

    place: Workplace
    interrupted: dict[signal.Signals, tuple[int, str]]
    left_by_interrupts: list[str]

    @property
    def storage(self) -> Path:
        """Where the batches are."""
        return self.place.storage("regions")


@pytest.fixture(scope="module")
def survivor(
    tmp_path_factory: pytest.TempPathFactory, landing: Path, warm_spark: str
) -> Iterator[Survivor]:
    """Kill a run half-way, interrupt two, kill more at named points, and let one finish."""
    place = Workplace(folder=tmp_path_factory.mktemp("killed"))
    _write_streams(place, landing, only="regions")
    process = _started_run(place, until=2)
    kill_group(process)
    assert 2 <= len(manifests(place.storage("regions"))) < 12, place.output.read_text()
    wait_until(lambda: not _besides_postgres(place), "JVM and workers end", seconds=30)
    interrupted = {}
    left: list[str] = []
    warm = place.given(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    for number, there in ((signal.SIGINT, place), (signal.SIGTERM, warm)):
        process = _started_run(there, until=len(manifests(place.storage("regions"))) + 1)
        process.send_signal(number)
        interrupted[number] = (process.wait(60), place.output.read_text())
        left += names(place.processes())
    for point in KILLED_AT:
        ended = warm.given(BATCH_PIPELINE_FAILPOINTS=f"{point}=kill").run("run")
        assert ended.returncode == -signal.SIGKILL, f"{point}: {ended.returncode}\n{ended.stderr}"
    done = _by_stream(warm.told("run"))["regions"]
    assert (done["failed"], done["error"]) == ([], None)
    yield Survivor(place=place, interrupted=interrupted, left_by_interrupts=left)
    place.end_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_how_to_go_on(survivor: Survivor, number: signal.Signals) -> None:
    """Expect exit code 130 and one message, whether it was Ctrl-C or the end of a service."""
    exit_code, output = survivor.interrupted[number]
    assert exit_code == 130
    assert "error: Interrupted. Open attempts were closed" in output
    assert "Traceback" not in output


def test_interrupted_run_leaves_no_process(survivor: Survivor) -> None:
    """Expect database, JVM and workers to end with the command."""
    assert survivor.left_by_interrupts == []


def test_killed_run_ends_in_the_same_result(survivor: Survivor) -> None:
    """Expect the records of an undisturbed run, each once."""
    values = [record["totale_positivi"] for record in json_records(survivor.storage)]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_killed_run_publishes_every_batch_exactly_once(survivor: Survivor) -> None:
    """Expect 12 batches in one generation each, in the pointer files and in the messages."""
    pointers = manifests(survivor.storage)
    [status] = survivor.place.told("status")["streams"]
    lines = [json.loads(line) for line in survivor.place.done("messages", "regions").splitlines()]
    sent = [line["batch_id"] for line in lines if line["type"] == "BATCH"]
    assert [manifest["generation"] for manifest in pointers] == [1] * 12
    assert sorted(sent) == [manifest["batch_id"] for manifest in pointers]
    assert len(set(sent)) == 12
    assert status["batches"]["published"] == 12
    assert status["unfinished"] == []
    assert max(manifest["attempt"] for manifest in pointers) > 1


def test_killed_run_leaves_no_process(survivor: Survivor) -> None:
    """Expect nothing to run any more once the last run has ended: no JVM, worker or Postgres."""
    wait_until(lambda: not survivor.place.processes(), "all processes end", seconds=15)
    assert names(survivor.place.processes()) == []


def test_killed_run_shows_every_partition_in_dagster(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect all partitions materialized and no run that claims to be going on."""
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(survivor.place.home))
    stream = read_stream_file(survivor.place.streams / "regions" / "defs.yaml")
    keys = {manifest["batch_id"] for manifest in manifests(survivor.storage)}
    home = Home(path=survivor.place.home)
    try:
        with open_instance(home) as instance:
            materialized = instance.get_materialized_partitions(batches_key(stream))
            runs = instance.get_runs()
    finally:
        embedded.release(home.postgres)
    finished = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE}
    assert materialized == keys
    assert {run.status for run in runs} == finished


def _write_streams(place: Workplace, landing: Path, *, only: str | None = None) -> None:
    encodings = {
        "regions": {"format": "jsonl", "compression": "gzip"},
        "regions_parquet": {"format": "parquet", "compression": "zstd"},
    }
    for name, encoding in encodings.items():
        if only in {None, name}:
            place.write_stream(
                name,
                source={"uri": str(landing), "include": ["dpc-*.csv"]},
                batch={"max_count": 150},
                encoding=encoding,
                key_properties=["data", "codice_regione"],
            )


def _started_run(place: Workplace, *, until: int) -> "subprocess.Popen[str]":
    """Start a run and wait until so many batches are published."""
    process = place.start("run")
    pointers = place.storage("regions") / "manifests"
    wait_until(
        lambda: len(list(pointers.glob("*.json"))) >= until or process.poll() is not None,
        f"{until} batches are published",
        pause_seconds=0.01,
    )
    assert process.poll() is None, place.output.read_text()
    return process


def _by_stream(printed: dict[str, Any]) -> dict[str, Any]:
    return {one["stream"]: one for one in printed["streams"]}


def _besides_postgres(place: Workplace) -> list[str]:
    return [line for line in names(place.processes()) if "postgres" not in line.split()[1]]
