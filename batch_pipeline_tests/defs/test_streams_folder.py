"""Definitions of a streams folder: many, invalid and changed stream files."""

import logging
import os
import sys
from pathlib import Path
from textwrap import dedent

import dagster as dg
import pytest

from batch_pipeline import build_definitions, describe_stream
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.factories import environment_of

LOAD = dedent("""
    import sys, warnings
    import dagster  # starts a subprocess to detect the architecture
    opened = []
    WATCHED = {"socket.connect", "subprocess.Popen", "os.fork", "os.mkdir", "sqlite3.connect"}
    sys.addaudithook(lambda event, words: event in WATCHED and opened.append(event))
    warnings.simplefilter("ignore")
    from batch_pipeline.definitions import defs
    repository = defs().get_repository_def()
    print(len(repository.asset_graph.get_all_asset_keys()), opened)
    import batch_pipeline.defs.in_process_runs
    print("dagster_aws" in sys.modules)
""")


def write(folder: Path, name: str, more: str = "") -> Path:
    """Write a stream file and return its path."""
    path = folder / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    attributes = f"attributes:\n  stream: {name}\n  source: {{uri: ./landing}}\n{more}"
    path.write_text(f"type: batch_pipeline.BatchStream\n{attributes}")
    return path


def streams_of(definitions: dg.Definitions) -> set[str]:
    """Return the first parts of all asset keys."""
    return {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def tick(definitions: dg.Definitions) -> str:
    """Evaluate the sensor of stream files and return its message."""
    with dg.build_sensor_context() as context:
        result = definitions.resolve_sensor_def("batch_pipeline_stream_files")(context)
    assert isinstance(result, dg.SkipReason)
    return str(result.skip_message)


def test_loading_streams_opens_nothing(tmp_path: Path) -> None:
    """No connection is opened, no process started, no folder created, no SDK of AWS imported."""
    for name in ("orders", "refunds"):
        write(tmp_path / "streams", name)
    nowhere = "postgresql://user@127.0.0.1:1/none"
    environment = {
        **os.environ,
        **environment_of(tmp_path, nowhere),
        "BATCH_PIPELINE_META_CONN": nowhere,
        "BATCH_PIPELINE_SPARK_REMOTE": "sc://127.0.0.1:1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    loaded = program_output(sys.executable, "-c", LOAD, env=environment, cwd=tmp_path)
    assert loaded == "4 []\nFalse\n"
    assert [path.name for path in tmp_path.iterdir()] == ["streams"]


def test_invalid_file_is_reported_and_other_streams_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported in the log and by a failing sensor."""
    write(tmp_path, "orders")
    broken = write(tmp_path, "refunds", "  batch: {max_wieght: 1}\n")
    with caplog.at_level(logging.ERROR, "batch_pipeline"):
        definitions = build_definitions(tmp_path)
    assert streams_of(definitions) == {"orders"}
    problem = f"{broken}:5: unknown key `max_wieght` in `batch`; did you mean `max_weight`?"
    assert caplog.messages[0].startswith(problem)
    with pytest.raises(ConfigurationError, match="max_wieght") as caught:
        tick(definitions)
    assert str(caught.value).startswith(problem)


def test_changed_files_are_reported_until_a_reload(tmp_path: Path) -> None:
    write(tmp_path, "orders")
    write(tmp_path, "visits")
    definitions = build_definitions(str(tmp_path))
    assert tick(definitions) == "Streams without changes: 2."
    write(tmp_path, "orders", "  batch: {max_count: 7}\n")
    write(tmp_path, "refunds")
    (tmp_path / "visits" / "defs.yaml").unlink()
    message = "Changed streams: orders, refunds, visits. Reload the code location"
    assert tick(definitions).startswith(message)
    reloaded = build_definitions(str(tmp_path))
    assert streams_of(reloaded) == {"orders", "refunds"}
    assert tick(reloaded) == "Streams without changes: 2."


def test_streams_can_be_described_in_python() -> None:
    orders = describe_stream(
        "orders", folder=Path("/data"), source={"uri": "in"}, batch={"max_weight": "1KiB"}
    )
    assert (orders.source.place, orders.limits.max_weight) == ("file:///data/in", 1024)
    visits = describe_stream("visits", source={"uri": "/data/visits"})
    assert streams_of(build_definitions([orders, visits])) == {"orders", "visits"}
    with pytest.raises(ConfigurationError, match="It was not defined") as caught:
        describe_stream("orders", sorce={"uri": "a"}, batch={"max_count": 0})
    message = str(caught.value)
    assert message.startswith("The stream 'orders': ")
    assert "unknown key `sorce` in `attributes`; did you mean `source`?" in message
    assert "`source` is missing" in message
    assert "`batch.max_count` is 0; expected at least 1" in message
