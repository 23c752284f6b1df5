"""Our commands follow the rules for BATCH producers; the tap also passes the SDK's own tests."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from click.testing import CliRunner

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.tap import BatchPipelineTap, main
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import StreamFileError
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.singer.messages import JSON_SCHEMA
from batch_pipeline_tests.acceptance.sandbox import Sandbox, program_output
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.conformance.rules import Producer, broken_resume, broken_rules, parsed
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import copied_database
from batch_pipeline_tests.singer.tap.tap_fixture import signals_restored
from batch_pipeline_tests.spark.encode_fixture import session_of

ORDERS = {
    f"orders-{number}.csv": (f"order_id,price\n{number}1,{number}.50\n{number}2,2\n").encode()
    for number in (1, 2, 3, 5)
} | {"orders-4.csv": b"order_id,price,note\n41,4.50,late\n", "orders-6.csv": b"order_id\n"}
PARCELS = b"""\
{"id":1,"sent":true,"weight":12345678901234567890123,"ratio":0.1,"to":{"city":"Z\xc3\xbcrich"}}
{"id":2,"sent":null,"weight":-1,"ratio":2.0,"to":{"city":null,"zip":[8001]}}
"""
STANDARD = """\
from singer_sdk.testing import get_tap_test_class
from batch_pipeline.cli.tap import BatchPipelineTap
TestTap = get_tap_test_class(BatchPipelineTap, config={config!r})
"""
TAP = "from batch_pipeline.cli.tap import main; main()"


@pytest.fixture(scope="module")
def home(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """A home with published batches of two streams, encoded on a real Spark; tests only read it.

    `orders` is encoded from csv to jsonl with gzip: three batches, the second with an additional
    column and published twice, and a backfill of the first two files. `parcels` is encoded from
    jsonl to parquet, with values of many types, below a folder with spaces and a percent sign.
    """
    folder = tmp_path_factory.mktemp("home")
    with copied_database(server_url, template) as url:
        sandbox = Sandbox(folder=folder, variables={"BATCH_PIPELINE_INVENTORY_CONN": url})
        sandbox.write_stream("orders", key_properties=["order_id"], batch={"max_count": 2})
        sandbox.write_stream(
            "parcels",
            source={"include": ["*.jsonl"], "format": "jsonl"},
            encoding={"format": "parquet", "compression": "snappy"},
            storage={"root": str(folder / "100% of the batches")},
            key_properties=["id"],
        )
        sandbox.land("orders", ORDERS)
        sandbox.land("parcels", {"parcels-1.jsonl": PARCELS})
        pipeline = Pipeline.from_environment(sandbox.environment)
        with session_of("local", folder / "spark") as session, closing(pipeline):
            for stream in pipeline.streams.values():
                _publish_all(pipeline, stream, session)
        yield sandbox


def _publish_all(pipeline: Pipeline, stream: Stream, session: Any) -> None:
    table = pipeline.database.meta_table(stream.name)
    table.register(pipeline.landing(stream, wait=False).found_files())
    pipeline.database.batches.plan(table, stream.limits, drain=True)
    statuses = list(pipeline.database.batches.statuses(stream.name))
    context = pipeline.encode_context(stream, lambda: session)
    if stream.name == "orders":
        selection = Selection(ids=IdRange(first_id=1, last_id=2))
        request = Backfill.of_stream("orders", "2023", selection, limits(max_weight=10**6))
        pipeline.database.backfills.plan(request, table)
        statuses += [*pipeline.database.backfills.statuses("orders.2023", table.name), statuses[1]]
    for status in statuses:
        encode(context, status.batch, run_id="run-1")


def config_of(home: Sandbox, **more: Any) -> dict[str, Any]:
    """Return a configuration of the tap; its default mode is RECORD."""
    conn = home.environment["BATCH_PIPELINE_INVENTORY_CONN"]
    folders = {"home": str(home.home), "streams_folder": str(home.streams)}
    return {**folders, "inventory_conn": conn, **more}


def config_file(home: Sandbox, **more: Any) -> str:
    """Write a configuration of the tap to a file and return its path."""
    file = home.folder / "tap.json"
    file.write_text(json.dumps(config_of(home, **more)), encoding="utf-8")
    return str(file)


@pytest.fixture(params=["messages", "tap"])
def producer(request: pytest.FixtureRequest, home: Sandbox) -> Producer:
    """Each of our commands that prints BATCH messages."""
    words = {
        "messages": ["-m", "batch_pipeline", "messages", "orders"],
        "tap": ["-c", TAP, "--config", config_file(home, mode="batch")],
    }
    command = [sys.executable, *words[request.param]]
    return Producer(command=command, environment=home.environment)


def test_command_follows_all_rules_and_resumes_with_the_remaining_batches(
    producer: Producer, *, long_form: bool
) -> None:
    lines = producer.lines()
    schema = json.loads(JSON_SCHEMA.read_text(encoding="utf-8"))
    assert broken_rules(lines, schema) == []
    assert broken_resume(producer, lines, every=1 if long_form else 3) == []
    streams = [batch["stream"] for batch in parsed(lines, "BATCH")]
    assert streams.count("orders") == 4
    assert ("parcels" in streams) != ("messages" in producer.command)


def test_messages_command_sends_the_newest_generation_of_all_jobs(home: Sandbox) -> None:
    result = invoke("messages", "orders", env=home.environment)
    sent = parsed(result.stdout_bytes.splitlines(), "BATCH")
    keys = [(batch["job"], batch["batch_id"][-3:], batch["generation"]) for batch in sent]
    assert keys == [
        ("orders", "002", 1),
        ("orders", "006", 1),
        ("orders", "004", 2),
        ("orders.2023", "002", 1),
    ]
    assert [batch["record_count"] for batch in sent] == [4, 2, 3, 4]
    assert [batch["schema_version"] for batch in sent] == [1, 2, 2, 2]


def test_tap_passes_the_standard_tests_of_the_sdk(home: Sandbox) -> None:
    folder = home.folder / "standard"
    folder.mkdir()
    (folder / "test_standard.py").write_text(STANDARD.format(config=config_of(home)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    program_output(*command, "--junitxml=report.xml", cwd=folder, env=home.environment)
    [suite] = Xml.parse(folder / "report.xml").getroot()  # noqa: S314 - pytest wrote it just now
    counts = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 4 + 2 * 6


def test_tap_about_lists_settings_and_capabilities() -> None:
    about = json.loads(run_tap("--about", "--format", "json"))
    assert about["name"] == "tap-batch-pipeline"
    settings = about["settings"]["properties"]
    assert " ".join(settings) == (
        "home streams_folder inventory_conn streams mode backfills batch_config"
    )
    assert all(setting["description"] for setting in settings.values())
    assert "batch" in about["capabilities"]


def test_tap_offers_named_streams_beside_an_invalid_file(tmp_path: Path, database_url: str) -> None:
    sandbox = Sandbox(folder=tmp_path, variables={"BATCH_PIPELINE_INVENTORY_CONN": database_url})
    sandbox.write_stream("orders")
    sandbox.write_stream("clicks", source={"format": "unknown"})
    catalog = run_tap("--config", config_file(sandbox, streams=["orders"]), "--discover")
    assert [entry["stream"] for entry in json.loads(catalog)["streams"]] == ["orders"]
    for streams in (["clicks"], None):
        config = config_file(sandbox, streams=streams)
        with signals_restored():
            result = CliRunner().invoke(BatchPipelineTap.cli, ["--config", config, "--discover"])
        assert isinstance(result.exception, StreamFileError)


def test_tap_in_test_mode_sends_one_batch_of_each_stream(home: Sandbox) -> None:
    sent = parsed(run_tap("--config", config_file(home, mode="batch"), "--test").splitlines())
    batches = [message["stream"] for message in sent if message["type"] == "BATCH"]
    assert batches == ["orders", "parcels"]


def run_tap(*options: str) -> bytes:
    """Run the tap in this process and return its output."""
    with signals_restored():
        result = CliRunner().invoke(BatchPipelineTap.cli, options)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def test_tap_never_prints_inventory_credentials(
    home: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    conn = "postgresql://me:secret@127.0.0.1:1/none"
    config = config_file(home, inventory_conn=conn)
    monkeypatch.setattr(sys, "argv", ["tap-batch-pipeline", "--config", config])
    with signals_restored(), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 75
    output = capfd.readouterr()
    assert "secret" not in output.err + output.out
    assert "127.0.0.1" in output.err
