"""The command `tap-batch-pipeline`, and the SDK's standard tests for taps."""

import json
import subprocess
import sys
from xml.etree import ElementTree as Xml

import pytest

from batch_pipeline_tests.conformance.producer import Producer, parsed
from batch_pipeline_tests.conformance.published_home import PublishedHome
from batch_pipeline_tests.conformance.rules import records_of

STANDARD = """\
from singer_sdk.testing import get_tap_test_class
from batch_pipeline.cli.tap import BatchPipelineTap
TestTap = get_tap_test_class(BatchPipelineTap, config={config!r})
"""


def run(producer: Producer, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command with additional options."""
    command = [*producer.command, *options]
    return subprocess.run(
        command, env=dict(producer.environment), capture_output=True, text=True, check=False
    )


def test_tap_passes_the_standard_tests_of_the_sdk(home: PublishedHome) -> None:
    folder = home.sandbox.folder / "standard"
    folder.mkdir()
    (folder / "test_standard.py").write_text(STANDARD.format(config=home.config()))
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml"],
        cwd=folder,
        env=home.sandbox.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    [suite] = Xml.parse(folder / "report.xml").getroot()  # noqa: S314 - pytest wrote it just now
    counts = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 4 + 2 * 6


def test_tap_in_record_mode_sends_the_records_of_the_part_files(home: PublishedHome) -> None:
    batches = parsed(home.tap(mode="batch", streams=["orders"]).lines(), "BATCH")
    stored = [record for message in batches for record in records_of(message)]
    lines = home.tap().lines()
    sent = [message for message in parsed(lines, "RECORD") if message["stream"] == "orders"]
    assert [message["record"] for message in sent] == stored
    assert len(stored) == 13
    [heavy] = [line for line in lines if b"12345678901234567890123" in line]
    assert json.loads(heavy)["record"] == {
        "id": 1,
        "sent": True,
        "weight": 12345678901234567890123,
        "ratio": 0.1,
        "to": {"city": "Zürich"},
    }


def test_tap_in_record_mode_resumes_with_exactly_the_remaining_records(home: PublishedHome) -> None:
    lines = home.tap().lines()
    second_state = [n for n, line in enumerate(lines) if b'"type":"STATE"' in line][1]
    state = json.loads(lines[second_state])["value"]
    rest = home.tap().lines(state)
    assert parsed(rest, "RECORD") == parsed(lines[second_state:], "RECORD")
    assert parsed(rest, "STATE")[-1] == parsed(lines, "STATE")[-1]


def test_tap_omits_a_deselected_column_of_parquet_files(home: PublishedHome) -> None:
    catalog = json.loads(run(home.tap(), "--discover").stdout)
    for stream in catalog["streams"]:
        for entry in stream["metadata"]:
            if entry["breadcrumb"] in (["properties", "weight"], ["properties", "price"]):
                entry["metadata"]["selected"] = False
    file = home.sandbox.folder / "catalog.json"
    file.write_text(json.dumps(catalog))
    lines = home.tap("--catalog", str(file), mode="batch").lines()
    assert not [line for line in lines if b"weight" in line or b"price" in line]
    records = parsed(lines, "RECORD")
    sent = [message["record"] for message in records if message["stream"] == "parcels"]
    assert sent[1] == {"id": 2, "sent": None, "ratio": 2.0, "to": {"city": None, "zip": [8001]}}


def test_tap_about_lists_settings_and_capabilities(home: PublishedHome) -> None:
    about = json.loads(run(home.tap(), "--about", "--format", "json").stdout)
    assert about["name"] == "tap-batch-pipeline"
    settings = about["settings"]["properties"]
    assert list(settings) == [
        "home",
        "streams_folder",
        "inventory_conn",
        "streams",
        "mode",
        "backfills",
        "batch_config",
    ]
    assert all(setting["description"] for setting in settings.values())
    assert "batch" in about["capabilities"]


def test_tap_discovers_streams_with_their_newest_columns(home: PublishedHome) -> None:
    catalog = json.loads(run(home.tap(), "--discover").stdout)
    streams = {entry["stream"]: entry for entry in catalog["streams"]}
    assert streams["orders"]["key_properties"] == ["order_id"]
    assert list(streams["orders"]["schema"]["properties"]) == ["order_id", "price", "note"]
    assert next(iter(streams["parcels"]["schema"]["properties"])) == "id"


@pytest.mark.parametrize(("mode", "kind"), [("record", "RECORD"), ("batch", "BATCH")])
def test_tap_in_test_mode_sends_one_message_of_each_stream(
    home: PublishedHome, mode: str, kind: str
) -> None:
    completed = run(home.tap(mode=mode), "--test")
    assert completed.returncode == 0, completed.stderr
    sent = parsed(completed.stdout.encode().splitlines(), kind)
    assert [message["stream"] for message in sent] == ["orders", "parcels"]


def test_tap_reports_an_unknown_stream_without_a_traceback(home: PublishedHome) -> None:
    completed = run(home.tap(streams=["clicks"]))
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.splitlines()[-1] == (
        "Error: streams: there is no stream clicks (streams there: orders, parcels). Nothing was "
        "sent. Correct the name or the streams folder."
    )
    assert "Traceback" not in completed.stderr


def test_tap_never_prints_inventory_credentials(home: PublishedHome) -> None:
    conn = "postgresql://me:secret@127.0.0.1:1/none"
    completed = run(home.tap(inventory_conn=conn))
    assert completed.returncode == 75
    assert "secret" not in completed.stderr + completed.stdout
    assert "127.0.0.1" in completed.stderr
