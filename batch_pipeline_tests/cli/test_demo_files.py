"""The files of the demo."""

import hashlib
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.demo import _forget, _print_next, write_demo
from batch_pipeline_tests.seeds import register


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A freshly written demo."""
    write_demo(tmp_path / "demo")
    return tmp_path / "demo"


def files_of(demo: Path) -> list[Path]:
    return sorted((demo / "landing").iterdir())


def test_demo_files_are_reproducible(demo: Path) -> None:
    files, digest = files_of(demo), hashlib.sha256()
    assert len(files) == 60
    assert (files[0].name, files[-1].name) == ("orders-2026-01-01.csv", "orders-2026-03-01.csv")
    for path in files:
        digest.update(f"{path.name} {path.stat().st_mtime_ns}\n".encode() + path.read_bytes())
    assert digest.hexdigest() == "729b2b51353b1e921b44d21314d2e497d5ecca30a6f876806813a80d61526da9"


@pytest.mark.parametrize("other", [None, "here", "setting"])
def test_next_steps_name_the_setting_without_which_they_miss_the_stream(
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    other: str | None,
) -> None:
    """Streams in the current folder, or those of a setting, are used instead of the demo's."""
    monkeypatch.chdir(demo.parent)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(demo.parent))
    monkeypatch.delenv("BATCH_PIPELINE_STREAMS", raising=False)
    if other == "here":
        (demo.parent / "streams").mkdir()
    elif other == "setting":
        monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(demo.parent / "others"))
    _print_next(demo / "streams")
    setting = f"first: export BATCH_PIPELINE_STREAMS={demo / 'streams'}\n"
    assert (setting in capsys.readouterr().out) is (other is not None)


def test_second_write_restores_order_files_only(demo: Path) -> None:
    """Users may edit the stream file."""
    first, second, *_ = files_of(demo)
    original, before = first.read_bytes(), _file_stats(demo)
    write_demo(demo)
    assert _file_stats(demo) == before
    first.write_text("order_id\n1\n")
    second.unlink()
    stream_file = demo / "streams" / "demo_orders" / "defs.yaml"
    stream_file.write_text("# mine\n")
    write_demo(demo)
    assert first.read_bytes() == original
    assert second.exists()
    assert stream_file.read_text() == "# mine\n"


@pytest.mark.parametrize("has_files", [True, False])
def test_reset_deletes_the_stream_of_the_demo_and_no_other(
    demo: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, *, has_files: bool
) -> None:
    """Also if its stream file is missing."""
    # Dagster's instance reads the environment.
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(demo.parent))
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    other = demo / "streams" / "invoices"
    shutil.copytree(demo / "streams" / "demo_orders", other)
    text = (other / "defs.yaml").read_text()
    (other / "defs.yaml").write_text(text.replace("demo_orders", "invoices"))
    (demo / "batches").mkdir()
    with closing(Pipeline.from_environment()) as pipeline:
        items = {name: pipeline.database.meta_table(name) for name in ("demo_orders", "invoices")}
        for name in items:
            register(pipeline.database, 1, name=name)
        if not has_files:
            shutil.rmtree(demo / "streams" / "demo_orders")
        _forget(pipeline)
        left = [name for name, table in items.items() if table.find("1")]
    assert (left, list(demo.iterdir())) == (["invoices"], [demo / "streams"])
    assert list((demo / "streams").iterdir()) == [other]


def _file_stats(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return the facts that writing a file changes; reading changes only its access time."""
    stats = ((path, path.stat()) for path in folder.rglob("*"))
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats}
