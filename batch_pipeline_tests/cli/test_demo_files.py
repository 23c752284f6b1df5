"""The files of the demo."""

import csv
import hashlib
from pathlib import Path

import pytest

from batch_pipeline.cli.demo import DemoFiles, write_demo
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.planning import cut


@pytest.fixture
def demo(tmp_path: Path) -> DemoFiles:
    """Return a freshly written demo."""
    return write_demo(tmp_path / "demo")


def rows_of(path: Path) -> list[list[str]]:
    """Read all rows of a csv file, the header included."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_demo_lands_sixty_files_named_by_day(demo: DemoFiles) -> None:
    """There is one file a day for sixty days, and nothing else in the landing folder."""
    assert len(demo.files) == 60
    assert demo.files[0].name == "orders-2026-01-01.csv"
    assert demo.files[-1].name == "orders-2026-03-01.csv"
    assert sorted(demo.landing.iterdir()) == list(demo.files)


def test_demo_written_anywhere_has_the_same_bytes(demo: DemoFiles) -> None:
    """Names, bytes and modified times never differ between machines, versions and runs."""
    digest = hashlib.sha256()
    for path in demo.files:
        digest.update(f"{path.name} {path.stat().st_mtime_ns}\n".encode() + path.read_bytes())
    assert digest.hexdigest() == "729b2b51353b1e921b44d21314d2e497d5ecca30a6f876806813a80d61526da9"


def test_demo_truth_equals_what_a_csv_reader_finds(demo: DemoFiles) -> None:
    """Records, bad records and the sum of quantity are those of the files themselves."""
    records, bad_records, quantity, order_ids = 0, 0, 0, set()
    for path in demo.files:
        header, *rows = rows_of(path) or [[]]
        for row in rows:
            if len(row) != len(header):
                bad_records += 1
                continue
            records += 1
            quantity += int(row[header.index("quantity")])
            order_ids.add(int(row[header.index("order_id")]))
    assert (records, bad_records, quantity) == (demo.records, demo.bad_records, demo.quantity)
    assert len(order_ids) == records > 5_000
    assert bad_records == 1


def test_demo_malformed_line_lacks_one_field(demo: DemoFiles) -> None:
    """The malformed record starts on the line that is told, and one cell is missing there."""
    header = rows_of(demo.malformed_file)[0]
    line = demo.malformed_file.read_text(encoding="utf-8").split("\n")[demo.malformed_line - 1]
    assert len(next(csv.reader([line]))) == len(header) - 1


def test_demo_column_discount_code_comes_halfway(demo: DemoFiles) -> None:
    """The header drifts once: the later half of the files has one more column, at the end."""
    headers = [rows[0] for path in demo.files if (rows := rows_of(path))]
    early = ["order_id", "ordered_at", "customer", "city", "product", "quantity", "unit_price"]
    early += ["note"]
    assert headers == [early] * 30 + [[*early, "discount_code"]] * 29


def test_demo_has_an_empty_and_a_header_only_file(demo: DemoFiles) -> None:
    """One file has no byte, one has a header and no record."""
    assert [path.name for path in demo.files if path.stat().st_size == 0] == [
        "orders-2026-02-14.csv"
    ]
    assert [path.name for path in demo.files if len(rows_of(path)) == 1] == [
        "orders-2026-01-18.csv"
    ]


@pytest.mark.parametrize("text", ["\n", '"', "東京", "Malmö", "القاهرة", ","])
def test_demo_cells_hold_difficult_text(demo: DemoFiles, text: str) -> None:
    """Line breaks, quotes, commas, accents and other scripts occur inside cells."""
    assert any(text in cell for path in demo.files for row in rows_of(path) for cell in row)


def test_demo_stream_cuts_its_files_into_ten_or_so_batches(demo: DemoFiles) -> None:
    """The demo has batches ended by weight as well as by count, and neither one nor sixty."""
    stream = load_streams(demo.streams)["demo_orders"]
    weighed_ids = [(id_, path.stat().st_size) for id_, path in enumerate(demo.files, start=1)]
    cuts = list(cut(weighed_ids, after_id=0, high_watermark=60, limits=stream.limits))
    assert 8 <= len(cuts) <= 12
    assert {one.count == stream.limits.max_count for one in cuts[:-1]} == {True, False}


def test_demo_stream_points_at_its_own_folders(demo: DemoFiles) -> None:
    """A demo works wherever it is: its stream file names folders relative to itself."""
    stream = load_streams(demo.streams)["demo_orders"]
    assert stream.source.place == to_uri(demo.landing)
    assert stream.storage.root == to_uri(demo.folder / "batches")
    assert (stream.key_properties, stream.on_bad_record.most) == (("order_id",), 10)


def test_demo_written_again_touches_nothing(demo: DemoFiles) -> None:
    """A second demo finds nothing new: same files, same content, same truth."""
    before = _written(demo.folder)
    assert write_demo(demo.folder) == demo
    assert _written(demo.folder) == before


def test_demo_written_again_restores_order_files_and_keeps_the_stream_file(demo: DemoFiles) -> None:
    """Order files are the demo's own; the stream file is for its reader to play with."""
    original = demo.files[0].read_bytes()
    demo.files[0].write_text("order_id\n1\n")
    demo.files[1].unlink()
    stream_file = demo.streams / "demo_orders" / "defs.yaml"
    stream_file.write_text("# mine\n")
    write_demo(demo.folder)
    assert demo.files[0].read_bytes() == original
    assert demo.files[1].exists()
    assert stream_file.read_text() == "# mine\n"


def _written(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what changes when a file is written; reading changes its access time."""
    facts = ((path, path.stat()) for path in folder.rglob("*"))
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in facts}
