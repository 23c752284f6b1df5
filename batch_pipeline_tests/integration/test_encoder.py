"""The encoder on a real Spark: packing, adding up reports, and what a caller is told."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import SparkUnavailableError, StorageUnavailableError
from batch_pipeline.domain.item import FoundFile, Item, modified_at
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.manifest import PartFile, check_batch_conservation
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import OnBadFile, Source, Storage, Stream
from batch_pipeline.ports import EncodeRequest, EncodeResult
from batch_pipeline.spark.encoder import SparkEncoder, packed
from batch_pipeline.spark.sessions.session import SparkSettings, close_session, open_session

MIB = 2**20


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session of two cores, in which each task may be tried several times."""
    home = tmp_path_factory.mktemp("spark")
    yield open_session(SparkSettings(home=home, master="local[2, 4]"))
    close_session()


class Desk:
    """A landing folder, a storage root and the encoder between them."""

    def __init__(self, folder: Path, session: SparkSession) -> None:
        self.landing = folder / "landing"
        self.root = folder / "batches"
        self.landing.mkdir()
        self.root.mkdir()
        self.encoder = SparkEncoder(lambda: session)
        self.items: list[Item] = []
        self.stream = Stream(
            name="orders",
            source=Source(uri=to_uri(self.landing)),
            limits=Limits(max_weight=1, max_count=1),
            encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
            storage=Storage(root=to_uri(self.root), prefix="p-"),
        )

    def land(self, data: bytes) -> None:
        """Write the next file."""
        number = len(self.items) + 1
        path = self.landing / f"orders-{number:04d}.csv"
        path.write_bytes(data)
        found = FoundFile(
            location=to_uri(path), size_bytes=len(data), modified_at=modified_at(path.stat())
        )
        self.items.append(Item(id=number, file=found))

    def encode(self, **types: str) -> EncodeResult:
        """Encode all files with a schema given as name=type, and check that no record is lost."""
        request = EncodeRequest(
            stream=self.stream,
            items=self.items,
            schema=RecordSchema.from_json(list(types.items())),
            stem="orders-1",
        )
        result = self.encoder.encode(request)
        check_batch_conservation(result.items, result.part_files)
        assert [item.item_id for item in result.items] == [item.id for item in self.items]
        return result

    def files(self) -> list[str]:
        """List what is in the storage."""
        return sorted(path.name for path in self.root.rglob("*") if path.is_file())


@pytest.fixture
def desk(tmp_path: Path, session: SparkSession) -> Desk:
    """An empty landing folder and an empty storage."""
    return Desk(tmp_path, session)


def records(files: tuple[PartFile, ...]) -> list[Any]:
    """Read gzipped JSON lines."""
    return [
        json.loads(line)
        for part in files
        for line in gzip.decompress(Path(to_path(part.uri)).read_bytes()).splitlines()
    ]


def weighing(*weights: int) -> list[Item]:
    """Make items of these weights."""
    whenever = modified_at(Path(__file__).stat())
    return [
        Item(id=n, file=FoundFile(location=f"file:///{n}", size_bytes=w, modified_at=whenever))
        for n, w in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        ([], []),
        ([0], [1]),
        ([8 * MIB, 8 * MIB, 1], [2, 1]),
        ([1, 99 * MIB, 1, 1], [1, 1, 2]),
        ([1] * 401, [200, 200, 1]),
    ],
)
def test_packed_items_keep_their_order_and_the_bounds(weights: list[int], sizes: list[int]) -> None:
    """A task takes items up to 16 MiB or 200 items; a heavier one stands alone."""
    items = weighing(*weights)
    tasks = list(packed(items))

    assert [len(task) for task in tasks] == sizes
    assert [item for task in tasks for item in task] == items


def test_encoder_with_several_tasks_gives_parts_and_items_in_order(desk: Desk) -> None:
    """Tasks end in any order; part files and reports are in the order of the items."""
    for number in range(450):
        desk.land(b"id,name\n%d,n%d\n" % (number, number))

    result = desk.encode(id="integer", name="string")

    assert [record["id"] for record in records(result.part_files)] == list(range(450))
    assert [part.records for part in result.part_files] == [200, 200, 50]
    starts = [Path(to_path(part.uri)).name.rpartition("-")[0] for part in result.part_files]
    assert starts == [f"p-orders-1-000{task}0000" for task in range(3)]
    assert desk.files() == sorted(Path(to_path(part.uri)).name for part in result.part_files)
    assert (result.text_source, result.misfits, result.bad_records) == (True, (), ())


def test_encoder_with_misfits_in_several_tasks_merges_them_and_leaves_no_file(desk: Desk) -> None:
    """Columns come in order of appearance with a type for all tasks; one repeat is enough."""
    for number in range(200):
        desk.land(b"id,wide\n%d,1234567890123456\n" % number)
    desk.land(b"id,wide,late\n1.5,0.5,x\n")

    first = desk.encode(id="integer", wide="integer")
    left = desk.files()
    second = desk.encode(**{column.name: column.type.value for column in first.misfits})

    assert {column.name: column.type.value for column in first.misfits} == {
        "id": "number",
        "wide": "string",
        "late": "string",
    }
    assert (first.part_files, left) == ((), [])
    assert second.misfits == ()
    assert records(second.part_files)[199:] == [
        {"id": 199, "wide": "1234567890123456", "late": None},
        {"id": 1.5, "wide": "0.5", "late": "x"},
    ]


def test_encoder_with_csv_and_jsonl_does_not_call_the_source_text(desk: Desk) -> None:
    """As soon as one file holds typed values, a column with no common type is `any`."""
    desk.land(b"a\nx\n")
    desk.land(b'{"a":1}\n')

    result = desk.encode(a="integer")

    assert [(column.name, column.type.value) for column in result.misfits] == [("a", "any")]
    assert result.text_source is False


def test_encoder_with_too_many_bad_records_over_all_tasks_leaves_no_file(desk: Desk) -> None:
    """Each task stays within the limit, all together do not: the result lists no file."""
    desk.stream = replace(desk.stream, max_bad_records=1)
    for number in range(201):
        desk.land(b"a,b\n1,2\n3\n" if number in (7, 200) else b"a,b\n1,2\n")

    result = desk.encode(a="integer", b="integer")

    assert [(bad.item_id, bad.line) for bad in result.bad_records] == [(8, 3), (201, 3)]
    assert (result.part_files, result.quarantine_files, desk.files()) == ((), (), [])


def test_encoder_with_a_bad_file_tells_it_and_obeys_the_stream(desk: Desk) -> None:
    """The batch goes on without the file when it may; else no file is written."""
    desk.land(b"a\n1\n")
    desk.land(b"a,a\n")
    allowed = replace(desk.stream, on_bad_file=OnBadFile.QUARANTINE)

    refused = desk.encode(a="integer")
    left = desk.files()
    desk.stream = allowed
    published = desk.encode(a="integer")

    reasons = [None, "line 1: header: column 'a' is there twice"]
    assert [item.bad_file for item in refused.items] == reasons
    assert left == []
    assert [item.bad_file for item in published.items] == reasons
    assert records(published.part_files) == [{"a": 1}]
    assert records(published.quarantine_files)[0]["reason"] == reasons[1]


def test_encoder_without_items_gives_an_empty_result(desk: Desk) -> None:
    """A range of ids may hold no item at all."""
    result = desk.encode()

    assert (result.items, result.part_files, result.misfits) == ((), (), ())


def test_encoder_with_storage_that_is_gone_says_so(desk: Desk) -> None:
    """Tasks report it, Spark does not try again, and the caller gets a sentence."""
    desk.land(b"a\n1\n")
    desk.root.rmdir()

    with pytest.raises(StorageUnavailableError, match=r"batches cannot be written \(No such file"):
        desk.encode(a="integer")


def test_encoder_with_workers_that_cannot_start_says_that_spark_is_unavailable(
    desk: Desk, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's long report becomes one line that names the cause."""
    monkeypatch.setattr(session.sparkContext, "pythonExec", "/no/such/python")
    desk.land(b"a\n1\n")

    with pytest.raises(SparkUnavailableError) as raised:
        desk.encode(a="integer")

    assert raised.value.target == "local[2, 4]"
    assert "/no/such/python" in raised.value.reason
    assert "\n" not in raised.value.reason
