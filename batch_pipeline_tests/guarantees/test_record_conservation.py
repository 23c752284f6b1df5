"""Random files through whole tasks: every record is found again, in one place (G15).

What is in the files is known here record by record, so nothing of what a task tells is believed.
"""

import gzip
import json
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
from batch_pipeline_tests.encode.mapping.mapping_factories import mapping
from batch_pipeline_tests.encode.task_fixture import TaskFixture
from batch_pipeline_tests.proofs import Figures

WRITTEN, FILTERED, MALFORMED, UNMAPPED = "written", "filtered", "malformed", "unmapped"
LINES = {
    SourceFormat.JSONL: {
        WRITTEN: '{"id":%d,"keep":"yes","text":"1"}',
        FILTERED: '{"id":%d,"keep":"no","text":"1"}',
        MALFORMED: '{"id":%d,"keep":"yes"',
        UNMAPPED: '{"id":%d,"keep":"yes","text":"one"}',
    },
    SourceFormat.CSV: {
        WRITTEN: "%d,yes,1",
        FILTERED: "%d,no,1",
        MALFORMED: "%d,yes",
        UNMAPPED: "%d,yes,one",
    },
}
HEADS = {SourceFormat.JSONL: "", SourceFormat.CSV: "id,keep,text\n"}
PACKED: dict[str, Callable[[bytes], bytes]] = {
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
    """The files of one task: the ids of all records by their expected fates, file by file.

    The records of a file have ids that follow one another, a line each.
    """

    task: TaskFixture
    files: list[dict[str, list[int]]] = field(default_factory=list)
    first_ids: list[int] = field(default_factory=list)
    damaged: list[bool] = field(default_factory=list)

    def ids(self, *fates: str) -> list[int]:
        """Return the ids of records with these fates, in the order in which they are read."""
        files = zip(self.files, self.damaged, strict=True)
        whole = [file for file, is_damaged in files if not is_damaged]
        return sorted(uid for file in whole for fate in fates for uid in file[fate])


def landed(folder: Path, chance: random.Random) -> Landed:
    """Land one to five files with records of all fates; some of the files are damaged."""
    folder.mkdir()
    task, source = TaskFixture(folder), chance.choice(list(LINES))
    here = Landed(task)
    task.stream = replace(
        task.stream,
        source=replace(task.stream.source, format=source),
        encoding=chance.choice(OUTPUTS),
        mapping=mapping(__filter__="keep == 'yes'", number="int(text)"),
        on_bad_record=BadRecordRules(max_bad_ratio=1.0),
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        part_limits=PartLimits(max_records=chance.randint(1, 400)),
    )
    uid = 0
    for _ in range(chance.randint(1, 5)):
        fates: dict[str, list[int]] = {fate: [] for fate in LINES[source]}
        lines = []
        here.first_ids.append(uid + 1)
        weights = [chance.choice([0, 1, 9]) for _ in fates]
        for _ in range(chance.choice([0, 1, 10, 500])):
            [fate] = chance.choices(list(fates), weights if any(weights) else None)
            uid += 1
            fates[fate].append(uid)
            lines.append(LINES[source][fate] % uid)
        text = HEADS[source] + "\n".join(lines) + chance.choice(["", "\n"])
        is_damaged = chance.random() < 0.1
        packing = "gzip" if is_damaged else chance.choice(list(PACKED))
        data = PACKED[packing](text.encode())
        task.land(data[:-9] if is_damaged else data)
        here.files.append(fates)
        here.damaged.append(is_damaged)
    return here


def written_ids(report: TaskReport) -> Iterator[int]:
    """Read the ids of all records from the part files, in order."""
    for part in report.part_files:
        path = to_path(part.uri)
        if path.endswith(".parquet"):
            ids = pq.read_table(path)["id"].to_pylist()
        else:
            lines = gzip.decompress(Path(path).read_bytes()).splitlines()
            ids = [json.loads(line)["id"] for line in lines]
        assert len(ids) == part.records
        yield from ids


def quarantined_ids(report: TaskReport, here: Landed) -> Iterator[int]:
    """Find the ids of all records in the quarantine files, by file and line."""
    headed = here.task.stream.source.format is SourceFormat.CSV
    for part in report.quarantine_files:
        for line in gzip.decompress(Path(to_path(part.uri)).read_bytes()).splitlines():
            bad = json.loads(line)
            if bad["line"] is not None:  # otherwise a whole file is bad
                yield here.first_ids[bad["item_id"] - 1] + bad["line"] - 1 - headed


def check(here: Landed) -> Counter[str]:
    """Run the task, look for every record, and count them by where they were found."""
    task = here.task
    report = task.encode(id="integer", keep="string", text="string", number="integer")
    assert report.misfits == ()
    assert [item.bad_file is not None for item in report.items] == here.damaged
    for item, fates, is_damaged in zip(report.items, here.files, here.damaged, strict=True):
        counts = {fate: 0 if is_damaged else len(ids) for fate, ids in fates.items()}
        assert item.read == sum(counts.values())
        assert (item.written, item.filtered) == (counts[WRITTEN], counts[FILTERED])
        assert item.quarantined == counts[MALFORMED] + counts[UNMAPPED]
    written = list(written_ids(report))
    aside = list(quarantined_ids(report, here))
    assert written == here.ids(WRITTEN)
    assert sorted(aside) == here.ids(MALFORMED, UNMAPPED)
    return Counter(
        files=len(here.files),
        files_set_aside=sum(here.damaged),
        records_read=sum(item.read for item in report.items),
        written=len(written),
        filtered=len(here.ids(FILTERED)),
        quarantined=len(aside),
    )


@pytest.mark.guarantee("G15")
def test_records_of_random_files_are_written_filtered_or_in_quarantine(
    tmp_path: Path, figures: Figures, *, long_form: bool
) -> None:
    chance = random.Random(15)  # noqa: S311 - the same files each time
    found: Counter[str] = Counter()
    for number in range(3_000 if long_form else 60):
        found += check(landed(tmp_path / str(number), chance))
    assert min(found.values()) > 0
    assert found["records_read"] == found["written"] + found["filtered"] + found["quarantined"]
    figures(**found, lost=0)
