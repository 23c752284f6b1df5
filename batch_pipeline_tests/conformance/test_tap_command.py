"""The command `tap-batch-pipeline`, and the SDK's standard tests for taps."""

import json
import sys
from xml.etree import ElementTree as Xml

import pytest

from batch_pipeline_tests.acceptance.sandbox import CompletedCommand, program_output, run_program
from batch_pipeline_tests.conformance.producer import Producer, parsed
from batch_pipeline_tests.conformance.published_home import PublishedHome

STANDARD = """\
from singer_sdk.testing import get_tap_test_class
from batch_pipeline.cli.tap import BatchPipelineTap
TestTap = get_tap_test_class(BatchPipelineTap, config={config!r})
"""


def run(producer: Producer, *options: str) -> CompletedCommand:
    """Run a command with additional options."""
    return run_program(*producer.command, *options, env=producer.environment)


def test_tap_passes_the_standard_tests_of_the_sdk(home: PublishedHome) -> None:
    folder = home.sandbox.folder / "standard"
    folder.mkdir()
    (folder / "test_standard.py").write_text(STANDARD.format(config=home.config()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    program_output(*command, "--junitxml=report.xml", cwd=folder, env=home.sandbox.environment)
    [suite] = Xml.parse(folder / "report.xml").getroot()  # noqa: S314 - pytest wrote it just now
    counts = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 4 + 2 * 6


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


@pytest.mark.parametrize(("mode", "kind"), [("record", "RECORD"), ("batch", "BATCH")])
def test_tap_in_test_mode_sends_one_message_of_each_stream(
    home: PublishedHome, mode: str, kind: str
) -> None:
    completed = run(home.tap(mode=mode), "--test")
    assert completed.returncode == 0, completed.stderr
    sent = parsed(completed.stdout.encode().splitlines(), kind)
    assert [message["stream"] for message in sent] == ["orders", "parcels"]


def test_tap_never_prints_inventory_credentials(home: PublishedHome) -> None:
    conn = "postgresql://me:secret@127.0.0.1:1/none"
    completed = run(home.tap(inventory_conn=conn))
    assert completed.returncode == 75
    assert "secret" not in completed.stderr + completed.stdout
    assert "127.0.0.1" in completed.stderr
