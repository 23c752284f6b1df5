"""Definitions of a streams folder: fifty streams, files that break, files that change."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import dagster as dg
import pytest

import batch_pipeline
from batch_pipeline import build_definitions, describe_stream
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError

LOAD = dedent("""
    import sys, warnings
    import dagster  # asks a program about this Python's architecture
    opened = []
    WATCHED = {"socket.connect", "subprocess.Popen", "os.fork", "os.mkdir", "sqlite3.connect"}
    sys.addaudithook(lambda event, words: event in WATCHED and opened.append(event))

    def load():
        from batch_pipeline.definitions import defs
        return defs().get_repository_def()

    warnings.simplefilter("ignore")
    repository = load()
    print(len(repository.asset_graph.get_all_asset_keys()) // 50, opened)
""")


def write(folder: Path, name: str, more: str = "") -> Path:
    """Write the stream file of a stream."""
    path = folder / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    attributes = f"attributes:\n  stream: {name}\n  source: {{uri: ./landing}}\n{more}"
    path.write_text(f"type: batch_pipeline.BatchStream\n{attributes}")
    return path


def streams_of(definitions: dg.Definitions) -> set[str]:
    """Give the first part of all asset keys."""
    return {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def tick(definitions: dg.Definitions) -> str:
    """Evaluate the sensor of the files, and give what it says."""
    with dg.build_sensor_context() as context:
        told = definitions.resolve_sensor_def("batch_pipeline_stream_files")(context)
    assert isinstance(told, dg.SkipReason)
    return str(told.skip_message)


def test_fifty_streams_load_and_open_nothing(tmp_path: Path) -> None:
    """Expect no connection, process or folder: a listening database hears of nobody."""
    for number in range(50):
        write(tmp_path / "streams", f"stream_{number}")
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = database.getsockname()[1]
        environment = os.environ | {
            "BATCH_PIPELINE_HOME": str(tmp_path / "home"),
            "BATCH_PIPELINE_STREAMS": str(tmp_path / "streams"),
            "BATCH_PIPELINE_INVENTORY_CONN": f"postgresql://nobody@127.0.0.1:{port}/nothing",
            "BATCH_PIPELINE_META_CONN": f"postgresql://nobody@127.0.0.1:{port}/nothing",
            "BATCH_PIPELINE_SPARK_REMOTE": f"sc://127.0.0.1:{port}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        database.setblocking(False)
        with pytest.raises(BlockingIOError):
            database.accept()
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout == "2 []\n"
    assert [path.name for path in tmp_path.iterdir()] == ["streams"]


def test_broken_file_leaves_the_other_streams_and_is_told_in_dagster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Expect the log and a failing sensor to name file, line and key, and one stream to load."""
    write(tmp_path, "orders")
    broken = write(tmp_path, "refunds", "  batch: {max_wieght: 1}\n")
    with caplog.at_level(logging.ERROR, "batch_pipeline"):
        definitions = build_definitions(tmp_path)
    assert streams_of(definitions) == {"orders"}
    told = f"{broken}:5: unknown key `max_wieght` in `batch`; did you mean `max_weight`?"
    assert caplog.messages[0].startswith(told)
    with pytest.raises(ConfigurationError, match="max_wieght") as failing:
        tick(definitions)
    assert str(failing.value).startswith(told)


def test_changed_files_are_told_and_taken_by_a_reload(tmp_path: Path) -> None:
    """Expect the sensor to name what a reload would change, and the reload to change it."""
    write(tmp_path, "orders")
    write(tmp_path, "visits")
    definitions = build_definitions(str(tmp_path))
    assert tick(definitions) == "Streams without changes: 2."
    write(tmp_path, "orders", "  batch: {max_count: 7}\n")
    write(tmp_path, "refunds")
    (tmp_path / "visits" / "defs.yaml").unlink()
    told = "Changed streams: orders, refunds, visits. Reload the code location"
    assert tick(definitions).startswith(told)
    reloaded = build_definitions(str(tmp_path))
    assert streams_of(reloaded) == {"orders", "refunds"}
    assert tick(reloaded) == "Streams without changes: 2."


def test_definitions_of_streams_described_in_python() -> None:
    """Expect keys and defaults of stream files, and paths that start at a folder."""
    orders = describe_stream(
        "orders", folder=Path("/data"), source={"uri": "in"}, batch={"max_weight": "1KiB"}
    )
    assert (orders.source.place, orders.limits.max_weight) == ("file:///data/in", 1024)
    visits = describe_stream("visits", source={"uri": "/data/visits"})
    assert streams_of(build_definitions([orders, visits])) == {"orders", "visits"}


def test_definitions_of_the_page_load() -> None:
    """Expect the Python of the page on Dagster to give what it says."""
    page = Path(batch_pipeline.__file__).with_name("docs") / "reference/dagster.md"
    blocks = [one.split("```")[0] for one in page.read_text("utf-8").split("```python\n")[1:]]
    [example] = [block for block in blocks if "build_definitions" in block]
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102 - our own page
    assert streams_of(names["defs"]) == {"orders"}


def test_stream_described_with_mistakes_is_refused() -> None:
    """Expect all mistakes at once, with the nearest key."""
    with pytest.raises(ConfigurationError, match="It was not made") as refused:
        describe_stream("orders", sorce={"uri": "a"}, batch={"max_count": 0})
    told = str(refused.value)
    assert told.startswith("The stream 'orders': ")
    assert "unknown key `sorce` in `attributes`; did you mean `source`?" in told
    assert "`source` is missing" in told
    assert "`batch.max_count` is 0; expected at least 1" in told


def test_definitions_of_two_streams_with_one_name_are_refused() -> None:
    """Expect a sentence instead of what Dagster says of doubled asset keys."""
    orders = describe_stream("orders", source={"uri": "/data"})
    with pytest.raises(InvalidValueError, match="a name of its own for each stream; 2 have"):
        build_definitions([orders, orders])
