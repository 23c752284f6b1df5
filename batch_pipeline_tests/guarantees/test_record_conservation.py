"""Random files are encoded by whole tasks, and every record must be in exactly one place (G15).

The tests know each record of the files, and do not rely on the counts that a task reports.
"""

import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from batch_pipeline.encode.task import TaskReport
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.model.stream import PartLimits, SourceFormat
from batch_pipeline_tests.encode.mapping.test_mapper import mapping
from batch_pipeline_tests.encode.task_fixture import TaskFixture
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage_roots import records

WRITTEN, FILTERED, MALFORMED, UNMAPPABLE = "written", "filtered", "malformed", "unmappable"
LINES = {
    SourceFormat.JSONL: {
        WRITTEN: '{"id":%d,"keep":"yes","text":"1"}',
        FILTERED: '{"id":%d,"keep":"no","text":"1"}',
        MALFORMED: '{"id":%d,"keep":"yes"',
        UNMAPPABLE: '{"id":%d,"keep":"yes","text":"one"}',
    },
    SourceFormat.CSV: {
        WRITTEN: "%d,yes,1",
        FILTERED: "%d,no,1",
        MALFORMED: "%d,yes",
        UNMAPPABLE: "%d,yes,one",
    },
}
HEADERS = {SourceFormat.JSONL: "", SourceFormat.CSV: "id,keep,text\n"}
COMPRESSION: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "zstd": zstandard.compress,
}
OUTPUTS = (
    Encoding(format=Format.JSONL, compression=Compression.GZIP),
    Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
)


@dataclass
class Landed:
    """The files of one task: for each file, the ids of its records by expected outcome.

    A record is a line. The ids of a file are consecutive.
    """

    task: TaskFixture
    files: list[dict[str, list[int]]] = field(default_factory=list)
    first_ids: list[int] = field(default_factory=list)
    damaged: list[bool] = field(default_factory=list)

    def ids(self, *outcomes: str) -> list[int]:
        """Return the ids of records with these outcomes in reading order."""
        files = zip(self.files, self.damaged, strict=True)
        whole = [file for file, is_damaged in files if not is_damaged]
        return sorted(uid for file in whole for outcome in outcomes for uid in file[outcome])


def land_files(folder: Path, rng: random.Random) -> Landed:
    """Land one to five files with records of all outcomes. Some files are damaged."""
    folder.mkdir()
    task, source = TaskFixture(folder), rng.choice(list(LINES))
    landed = Landed(task)
    task.stream = replace(
        task.stream,
        source=replace(task.stream.source, format=source),
        encoding=rng.choice(OUTPUTS),
        mapping=mapping(__filter__="keep == 'yes'", number="int(text)"),
        on_bad_record=BadRecordRules(max_bad_ratio=1.0),
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        part_limits=PartLimits(max_records=rng.randint(1, 400)),
    )
    uid = 0
    for _ in range(rng.randint(1, 5)):
        outcomes: dict[str, list[int]] = {outcome: [] for outcome in LINES[source]}
        lines = []
        landed.first_ids.append(uid + 1)
        weights = [rng.choice([0, 1, 9]) for _ in outcomes]
        for _ in range(rng.choice([0, 1, 10, 500])):
            [outcome] = rng.choices(list(outcomes), weights if any(weights) else None)
            uid += 1
            outcomes[outcome].append(uid)
            lines.append(LINES[source][outcome] % uid)
        text = HEADERS[source] + "\n".join(lines) + rng.choice(["", "\n"])
        is_damaged = rng.random() < 0.1
        packing = "gzip" if is_damaged else rng.choice(list(COMPRESSION))
        data = COMPRESSION[packing](text.encode())
        task.land(data[:-9] if is_damaged else data)
        landed.files.append(outcomes)
        landed.damaged.append(is_damaged)
    return landed


def written_ids(report: TaskReport) -> Iterator[int]:
    for part in report.part_files:
        path = to_path(part.uri)
        if path.endswith(".parquet"):
            ids = pq.read_table(path)["id"].to_pylist()
        else:
            ids = [record["id"] for record in records([part])]
        assert len(ids) == part.records
        yield from ids


def quarantined_ids(report: TaskReport, landed: Landed) -> Iterator[int]:
    """Yield the ids of all records in the quarantine files, derived from file and line."""
    has_header = landed.task.stream.source.format is SourceFormat.CSV
    for bad in records(report.quarantine_files):
        if bad["line"] is not None:  # otherwise a whole file is bad
            yield landed.first_ids[bad["item_id"] - 1] + bad["line"] - 1 - has_header


def check(landed: Landed) -> Counter[str]:
    """Run the task, find every record, and count the records by location."""
    task = landed.task
    report = task.encode(id="integer", keep="string", text="string", number="integer")
    assert report.misfits == ()
    assert [item.bad_file is not None for item in report.items] == landed.damaged
    for item, outcomes, is_damaged in zip(report.items, landed.files, landed.damaged, strict=True):
        counts = {outcome: 0 if is_damaged else len(ids) for outcome, ids in outcomes.items()}
        assert item.read == sum(counts.values())
        assert (item.written, item.filtered) == (counts[WRITTEN], counts[FILTERED])
        assert item.quarantined == counts[MALFORMED] + counts[UNMAPPABLE]
    written = list(written_ids(report))
    quarantined = list(quarantined_ids(report, landed))
    assert written == landed.ids(WRITTEN)
    assert sorted(quarantined) == landed.ids(MALFORMED, UNMAPPABLE)
    return Counter(
        files=len(landed.files),
        files_quarantined=sum(landed.damaged),
        records_read=sum(item.read for item in report.items),
        written=len(written),
        filtered=len(landed.ids(FILTERED)),
        quarantined=len(quarantined),
    )


@pytest.mark.guarantee("G15")
def test_every_record_of_random_files_is_written_filtered_or_quarantined(
    tmp_path: Path, figures: Figures, *, long_form: bool
) -> None:
    rng = random.Random(15)  # noqa: S311 - the same files each time
    totals: Counter[str] = Counter()
    for number in range(3_000 if long_form else 60):
        totals += check(land_files(tmp_path / str(number), rng))
    assert min(totals.values()) > 0
    assert totals["records_read"] == totals["written"] + totals["filtered"] + totals["quarantined"]
    figures(**totals, lost=0)
