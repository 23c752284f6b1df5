"""The files of the demo."""

import csv
import hashlib
from pathlib import Path

import pytest

from batch_pipeline.cli.demo import write_demo
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.planning import cut


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A freshly written demo."""
    write_demo(tmp_path / "demo")
    return tmp_path / "demo"


def files_of(demo: Path) -> list[Path]:
    return sorted((demo / "landing").iterdir())


def rows_of(path: Path) -> list[list[str]]:
    """Read all rows of a csv file, the header included."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_demo_files_are_reproducible(demo: Path) -> None:
    files, digest = files_of(demo), hashlib.sha256()
    assert len(files) == 60
    assert (files[0].name, files[-1].name) == ("orders-2026-01-01.csv", "orders-2026-03-01.csv")
    for path in files:
        digest.update(f"{path.name} {path.stat().st_mtime_ns}\n".encode() + path.read_bytes())
    assert digest.hexdigest() == "729b2b51353b1e921b44d21314d2e497d5ecca30a6f876806813a80d61526da9"


def test_demo_has_one_malformed_an_empty_and_a_header_only_file(demo: Path) -> None:
    tables = {path.name: rows_of(path) for path in files_of(demo)}
    good, bad, headers = [], [], []
    for name, (header, *rows) in ((name, rows) for name, rows in tables.items() if rows):
        headers.append(header)
        good += [row for row in rows if len(row) == len(header)]
        bad += [(name, len(header) - len(row)) for row in rows if len(row) != len(header)]
    assert [name for name, rows in tables.items() if not rows] == ["orders-2026-02-14.csv"]
    assert [name for name, rows in tables.items() if len(rows) == 1] == ["orders-2026-01-18.csv"]
    early = ["order_id", "ordered_at", "customer", "city", "product", "quantity", "unit_price"]
    early += ["note"]
    assert headers == [early] * 30 + [[*early, "discount_code"]] * 29
    assert len({row[0] for row in good}) == len(good) == 6_133
    assert bad == [("orders-2026-01-24.csv", 1)]


@pytest.mark.parametrize("text", ["\n", '"', "東京", "Malmö", "القاهرة", ","])
def test_demo_cells_hold_difficult_text(demo: Path, text: str) -> None:
    """Line breaks, quotes, commas, accents and other scripts occur inside cells."""
    assert any(text in cell for path in files_of(demo) for row in rows_of(path) for cell in row)


def test_demo_has_about_ten_batches_cut_by_count_and_by_weight(demo: Path) -> None:
    stream = load_streams(demo / "streams")["demo_orders"]
    weighed_ids = [(id_, path.stat().st_size) for id_, path in enumerate(files_of(demo), start=1)]
    cuts = list(cut(weighed_ids, after_id=0, high_watermark=60, limits=stream.limits))
    assert 8 <= len(cuts) <= 12
    assert {batch.count == stream.limits.max_count for batch in cuts[:-1]} == {True, False}


def test_demo_stream_uses_folders_relative_to_its_file(demo: Path) -> None:
    stream = load_streams(demo / "streams")["demo_orders"]
    assert stream.source.place == to_uri(demo / "landing")
    assert stream.storage.root == to_uri(demo / "batches")
    assert (stream.key_properties, stream.on_bad_record.most) == (("order_id",), 10)


def test_second_write_changes_no_file(demo: Path) -> None:
    before = _file_stats(demo)
    write_demo(demo)
    assert _file_stats(demo) == before


def test_second_write_restores_order_files_and_keeps_the_stream_file(demo: Path) -> None:
    """Users may edit the stream file."""
    first, second, *_ = files_of(demo)
    original = first.read_bytes()
    first.write_text("order_id\n1\n")
    second.unlink()
    stream_file = demo / "streams" / "demo_orders" / "defs.yaml"
    stream_file.write_text("# mine\n")
    write_demo(demo)
    assert first.read_bytes() == original
    assert second.exists()
    assert stream_file.read_text() == "# mine\n"


def _file_stats(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return the facts that writing a file changes; reading changes only its access time."""
    stats = ((path, path.stat()) for path in folder.rglob("*"))
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats}
