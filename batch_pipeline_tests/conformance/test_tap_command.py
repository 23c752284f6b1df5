"""`tap-batch-pipeline` as people and other programs call it, and the SDK's own tests of taps."""

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
    """Run a command with more options."""
    command = [*producer.command, *options]
    return subprocess.run(
        command, env=dict(producer.environment), capture_output=True, text=True, check=False
    )


def test_tap_passes_the_standard_tests_of_the_sdk(home: PublishedHome) -> None:
    folder = home.sandbox.folder / "standard"
    folder.mkdir()
    (folder / "test_standard.py").write_text(STANDARD.format(config=home.config()))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml"],
        cwd=folder,
        env=home.sandbox.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    [suite] = Xml.parse(folder / "found.xml").getroot()  # noqa: S314 - pytest wrote it just now
    counts = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 4 + 2 * 6


def test_tap_in_record_mode_sends_what_the_files_of_batches_hold(home: PublishedHome) -> None:
    batches = parsed(home.tap(mode="batch", streams=["orders"]).lines(), "BATCH")
    held = [record for message in batches for record in records_of(message)]
    lines = home.tap().lines()
    sent = [one for one in parsed(lines, "RECORD") if one["stream"] == "orders"]
    assert [one["record"] for one in sent] == held
    assert len(held) == 13
    [heavy] = [line for line in lines if b"12345678901234567890123" in line]
    assert json.loads(heavy)["record"] == {
        "id": 1,
        "sent": True,
        "weight": 12345678901234567890123,
        "ratio": 0.1,
        "to": {"city": "Zürich"},
    }


def test_tap_in_record_mode_resumes_with_exactly_the_rest(home: PublishedHome) -> None:
    lines = home.tap().lines()
    places = [place for place, line in enumerate(lines) if b'"type":"STATE"' in line]
    state = json.loads(lines[places[1]])["value"]
    rest = home.tap().lines(state)
    assert parsed(rest, "RECORD") == parsed(lines[places[1] :], "RECORD")
    assert parsed(rest, "STATE")[-1] == parsed(lines, "STATE")[-1]


def test_tap_leaves_a_deselected_column_out_of_parquet(home: PublishedHome) -> None:
    catalog = json.loads(run(home.tap(), "--discover").stdout)
    for entry in catalog["streams"]:
        for one in entry["metadata"]:
            if one["breadcrumb"] in (["properties", "weight"], ["properties", "price"]):
                one["metadata"]["selected"] = False
    file = home.sandbox.folder / "catalog.json"
    file.write_text(json.dumps(catalog))
    lines = home.tap("--catalog", str(file), mode="batch").lines()
    assert not [line for line in lines if b"weight" in line or b"price" in line]
    sent = [one["record"] for one in parsed(lines, "RECORD") if one["stream"] == "parcels"]
    assert sent[1] == {"id": 2, "sent": None, "ratio": 2.0, "to": {"city": None, "zip": [8001]}}


def test_tap_tells_what_it_is(home: PublishedHome) -> None:
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
    assert all(one["description"] for one in settings.values())
    assert "batch" in about["capabilities"]


def test_tap_discovers_the_streams_with_their_newest_columns(home: PublishedHome) -> None:
    catalog = json.loads(run(home.tap(), "--discover").stdout)
    found = {one["stream"]: one for one in catalog["streams"]}
    assert found["orders"]["key_properties"] == ["order_id"]
    assert list(found["orders"]["schema"]["properties"]) == ["order_id", "price", "note"]
    assert next(iter(found["parcels"]["schema"]["properties"])) == "id"


@pytest.mark.parametrize(("mode", "kind"), [("record", "RECORD"), ("batch", "BATCH")])
def test_tap_in_test_mode_sends_one_message_of_each_stream(
    home: PublishedHome, mode: str, kind: str
) -> None:
    ended = run(home.tap(mode=mode), "--test")
    assert ended.returncode == 0, ended.stderr
    sent = parsed(ended.stdout.encode().splitlines(), kind)
    assert [one["stream"] for one in sent] == ["orders", "parcels"]


def test_tap_tells_a_mistake_in_one_message(home: PublishedHome) -> None:
    ended = run(home.tap(streams=["clicks"]))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == (
        "Error: streams: there is no stream clicks (streams there: orders, parcels). Nothing was "
        "sent. Correct the name or the streams folder."
    )
    assert "Traceback" not in ended.stderr


def test_tap_never_prints_the_credentials_of_its_inventory(home: PublishedHome) -> None:
    conn = "postgresql://me:secret@127.0.0.1:1/none"
    ended = run(home.tap(inventory_conn=conn))
    assert ended.returncode == 75
    assert "secret" not in ended.stderr + ended.stdout
    assert "127.0.0.1" in ended.stderr
