"""The demo: in a fresh home, again, and after `--reset`; and queries about its result."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline_tests.acceptance.console_page import README, Command, steps
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    manifests,
    part_files,
    process_names,
    sha256,
    unaccounted_files,
    wait_until,
)

STREAM = "demo_orders"
MALFORMED = "orders-2026-01-24.csv"
# This checkout is the clone. `dev` is run by test_dev.py, which checks for the shown line.
RUN_ELSEWHERE = {
    "git clone https://github.com/batch-pipeline/batch-pipeline",
    "cd batch-pipeline",
    "uv run batch-pipeline dev",
}


def folder_of(sandbox: Sandbox) -> Path:
    """Return the demo's folder."""
    return sandbox.home / "demo"


def storage_of(sandbox: Sandbox) -> Path:
    """Return the demo's storage root."""
    return sandbox.home / "demo" / "batches"


@pytest.fixture(scope="module")
def demo(shared_sandbox: Sandbox) -> tuple[Sandbox, str]:
    """The sandbox and the output of the demo in its home."""
    return shared_sandbox.in_process(), shared_sandbox.output_of("demo")


def test_demo_prints_what_the_readme_shows(demo: tuple[Sandbox, str]) -> None:
    sandbox, output = demo
    text = README.partition("\n## Already on Dagster?\n")[0]
    commands = [step for step in steps(text) if isinstance(step, Command)]
    [shown] = [command for command in commands if command.command not in RUN_ELSEWHERE]
    assert shlex.split(shown.command) == ["uv", "run", "batch-pipeline", "demo"]
    assert shown.matches(output.replace(str(sandbox.home), "/clone/.batch_pipeline")), output
    for words in ("new items: 60", "new batches: 10", '"type": "BATCH"', f"messages {STREAM}"):
        assert words in output


def test_demo_publishes_all_records_of_its_files(demo: tuple[Sandbox, str]) -> None:
    storage = storage_of(demo[0])
    records = list(json_records(storage))
    late = [record for record in records if record.get("discount_code") is not None]
    ids = [record["order_id"] for record in records]
    assert (len(records), ids) == (6_133, sorted({*ids}))
    assert sum(record["quantity"] for record in records) == 18_328
    assert min(record["ordered_at"] for record in late) >= "2026-01-31"
    assert {"Zoë Lindström", "ليلى حسن", "山田 太郎"} <= {record["customer"] for record in records}
    assert "Please ring twice.\nSecond floor." in {record["note"] for record in records}
    for part, path in part_files(storage):
        assert sha256(path) == part["sha256"]
    assert unaccounted_files(storage) == []


def test_malformed_line_is_in_quarantine(demo: tuple[Sandbox, str]) -> None:
    [quarantine] = [
        Path(to_path(part["uri"]))
        for manifest in manifests(storage_of(demo[0]))
        for part in manifest["quarantine_files"]
    ]
    [entry] = [json.loads(line) for line in gzip.decompress(quarantine.read_bytes()).splitlines()]
    source = folder_of(demo[0]) / "landing" / MALFORMED
    assert (entry["item_id"], entry["location"], entry["line"]) == (24, to_uri(source), 87)
    assert entry["raw"].rstrip("\n") == source.read_text(encoding="utf-8").split("\n")[86]
    assert "7" in entry["reason"]
    assert "8" in entry["reason"]


def test_messages_are_schema_batches_and_states(demo: tuple[Sandbox, str]) -> None:
    """A new column is in a SCHEMA before its batch. Messages continue after a STATE."""

    def messages(*words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in demo[0].output_of("messages", *words).splitlines()]

    every = messages(STREAM)
    batches = [message for message in every if message["type"] == "BATCH"]
    states = [message for message in every if message["type"] == "STATE"]
    [(start, early), (index, late)] = [
        (index, message["schema"]["properties"])
        for index, message in enumerate(every)
        if message["type"] == "SCHEMA"
    ]
    assert (start, len(batches)) == (0, 10)
    assert all(every[at + 1]["type"] == "STATE" for at, it in enumerate(every) if it in batches)
    assert sum(batch["record_count"] for batch in batches) == 6_133
    for batch in batches:
        assert set(batch["encoding"]) == {"format", "compression"}
        for uri, digest in zip(batch["manifest"], batch["sha256"], strict=True):
            assert sha256(Path(to_path(uri))) == digest
    assert "discount_code" not in early
    assert set(late) - set(early) == {"discount_code"}
    assert every[index + 1]["batch_id"] == "00000028-00000033"

    state = demo[0].folder / "state.json"
    state.write_text(json.dumps(states[6]["value"]))
    rest = messages(STREAM, "--state", str(state))
    assert rest[0]["type"] == "SCHEMA"
    assert [message for message in rest if message["type"] == "BATCH"] == batches[7:]
    state.write_text(json.dumps(states[-1]["value"]))
    assert messages(STREAM, "--state", str(state)) == []


def test_explain_status_and_verify_describe_the_demo(demo: tuple[Sandbox, str]) -> None:
    """The malformed line is intentional, and the stream file allows it."""
    sandbox, path = demo[0], folder_of(demo[0]) / "landing" / MALFORMED
    [item] = sandbox.json_of("explain", str(path))["items"]
    [attempt] = item["attempts"]
    assert (item["item_id"], item["location"]) == (24, to_uri(path))
    assert (item["stream"], item["batch_id"]) == (STREAM, "00000022-00000027")
    assert (item["now"], item["generation"]) == ("unchanged since", 1)
    assert (attempt["number"], attempt["status"]) == (1, "succeeded")
    assert (attempt["read"], attempt["quarantined"]) == (attempt["written"] + 1, 1)
    text = sandbox.output_of("explain", path.name)
    steps_ = ["1 land", "2 register", "3 plan", "4 partition", "5 claim", "6 encode", "7 publish"]
    positions = [text.index(step) for step in steps_]
    assert positions == sorted(positions)
    assert f"{STREAM}-00000022-00000027-a1-" in text
    unknown = sandbox.run("explain", "orders-1999-01-01.csv")
    assert unknown.returncode == 1
    assert "orders-1999-01-01.csv is not a registered item" in unknown.stdout
    assert "no such file in the landing" in unknown.stdout

    [status] = sandbox.json_of("status")["streams"]
    assert (status["stream"], status["items_waiting"], status["unfinished"]) == (STREAM, 0, [])
    counts = {state: count for state, count in status["batches"].items() if count}
    assert counts == {"published": 10}
    assert sandbox.json_of("verify")["streams"][0]["passed"]


@pytest.mark.long
def test_second_demo_changes_nothing_and_reset_produces_identical_part_files(
    demo: tuple[Sandbox, str],
) -> None:
    sandbox = demo[0]

    def digests() -> list[list[str]]:
        published = manifests(storage_of(sandbox))
        return [[part["sha256"] for part in manifest["part_files"]] for manifest in published]

    first, files = digests(), files_below(folder_of(sandbox))
    second = sandbox.output_of("demo")
    assert "there was nothing to do" in second
    assert "new items: 0" in second
    assert files_below(folder_of(sandbox)) == files
    reset = sandbox.output_of("demo", "--reset")
    assert "new items: 60" in reset
    assert "records: 6134 read = 6133 written + 1 quarantined" in reset
    assert len(first) == 10
    assert digests() == first
    assert [manifest["attempt"] for manifest in manifests(storage_of(sandbox))] == [1] * 10
    sandbox.release_server()
    wait_until(lambda: not sandbox.processes(), "all processes end")
    assert process_names(sandbox.processes()) == []
