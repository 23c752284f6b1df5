"""The demo: in a fresh home, again, and after `--reset`; and queries about its result."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.model.location import to_path, to_uri
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Three runs of the demo in one home; digests are those of the manifests, by batch."""

    sandbox: Sandbox
    first: str
    second: str
    after_reset: str
    first_digests: list[list[str]]
    digests: list[list[str]]
    files_after_first: dict[str, tuple[int, int]]
    files_after_second: dict[str, tuple[int, int]]

    @property
    def folder(self) -> Path:
        """The demo's folder."""
        return self.sandbox.home / "demo"

    @property
    def storage(self) -> Path:
        """The demo's storage root."""
        return self.folder / "batches"


@pytest.fixture(scope="module")
def demo(shared_sandbox: Sandbox) -> Demo:
    """The result of three runs of the demo."""
    sandbox = shared_sandbox
    storage = sandbox.home / "demo" / "batches"
    first = sandbox.output_of("demo")
    first_digests, after_first = _digests(storage), files_below(sandbox.home / "demo")
    second = sandbox.output_of("demo")
    after_second = files_below(sandbox.home / "demo")
    after_reset = sandbox.output_of("demo", "--reset")
    return Demo(
        sandbox=sandbox,
        first=first,
        second=second,
        after_reset=after_reset,
        first_digests=first_digests,
        digests=_digests(storage),
        files_after_first=after_first,
        files_after_second=after_second,
    )


@pytest.fixture(scope="module")
def messages(demo: Demo) -> list[dict[str, Any]]:
    """The messages of the demo's stream."""
    return [json.loads(line) for line in demo.sandbox.output_of("messages", STREAM).splitlines()]


def test_first_demo_prints_counts(demo: Demo) -> None:
    for text in (
        "files: 60, in",
        "new items: 60",
        "new batches: 10",
        "part files: 10",
        "records: 6134 read = 6133 written + 1 quarantined",
        "manifests: 10, in",
        '"type": "BATCH"',
        "batch-pipeline messages demo_orders",
    ):
        assert text in demo.first


def test_second_demo_changes_no_file(demo: Demo) -> None:
    assert "there was nothing to do" in demo.second
    assert "new items: 0" in demo.second
    assert demo.files_after_second == demo.files_after_first


def test_reset_demo_produces_identical_part_files(demo: Demo) -> None:
    assert "new items: 60" in demo.after_reset
    assert "records: 6134 read = 6133 written + 1 quarantined" in demo.after_reset
    assert len(demo.first_digests) == 10
    assert demo.digests == demo.first_digests
    assert [manifest["attempt"] for manifest in manifests(demo.storage)] == [1] * 10


def test_demo_publishes_all_records_of_its_files(demo: Demo) -> None:
    records = list(json_records(demo.storage))
    late = [record for record in records if record.get("discount_code") is not None]
    assert len(records) == 6_133
    assert [record["order_id"] for record in records] == sorted(
        {record["order_id"] for record in records}
    )
    assert sum(record["quantity"] for record in records) == 18_328
    assert min(record["ordered_at"] for record in late) >= "2026-01-31"
    assert {"Zoë Lindström", "ليلى حسن", "山田 太郎"} <= {record["customer"] for record in records}
    assert "Please ring twice.\nSecond floor." in {record["note"] for record in records}


def test_demo_part_files_match_their_manifests(demo: Demo) -> None:
    for part, path in part_files(demo.storage):
        assert sha256(path) == part["sha256"]
    assert unaccounted_files(demo.storage) == []


def test_malformed_line_is_in_quarantine(demo: Demo) -> None:
    [quarantine] = [
        Path(to_path(part["uri"]))
        for manifest in manifests(demo.storage)
        for part in manifest["quarantine_files"]
    ]
    [entry] = [json.loads(line) for line in gzip.decompress(quarantine.read_bytes()).splitlines()]
    source = demo.folder / "landing" / "orders-2026-01-24.csv"
    raw = source.read_text(encoding="utf-8").split("\n")[86]
    assert entry["item_id"] == 24
    assert entry["location"] == to_uri(source)
    assert entry["line"] == 87
    assert entry["raw"].rstrip("\n") == raw
    assert "7" in entry["reason"]
    assert "8" in entry["reason"]


def test_demo_leaves_no_process(demo: Demo) -> None:
    wait_until(lambda: not demo.sandbox.processes(), "all processes end")
    assert process_names(demo.sandbox.processes()) == []


def test_messages_are_schema_batches_and_states(demo: Demo, messages: list[dict[str, Any]]) -> None:
    types = [message["type"] for message in messages]
    batches = [message for message in messages if message["type"] == "BATCH"]
    assert types[0] == "SCHEMA"
    assert len(batches) == 10
    assert all(types[index + 1] == "STATE" for index, kind in enumerate(types) if kind == "BATCH")
    assert sum(batch["record_count"] for batch in batches) == 6_133
    assert all(set(batch["encoding"]) == {"format", "compression"} for batch in batches)
    for batch in batches:
        for uri, digest in zip(batch["manifest"], batch["sha256"], strict=True):
            assert sha256(Path(uri.removeprefix("file://"))) == digest


def test_new_column_is_in_a_schema_before_its_batch(messages: list[dict[str, Any]]) -> None:
    schemas = [
        (index, message["schema"]["properties"])
        for index, message in enumerate(messages)
        if message["type"] == "SCHEMA"
    ]
    [(_, early), (index, late)] = schemas
    assert "discount_code" not in early
    assert set(late) - set(early) == {"discount_code"}
    assert messages[index + 1]["type"] == "BATCH"
    assert messages[index + 1]["batch_id"] == "00000028-00000033"


def test_messages_continue_after_a_state(demo: Demo, messages: list[dict[str, Any]]) -> None:
    states = [message for message in messages if message["type"] == "STATE"]
    batch_ids = [message["batch_id"] for message in messages if message["type"] == "BATCH"]
    state = demo.sandbox.folder / "state.json"
    state.write_text(json.dumps(states[6]["value"]))
    lines = demo.sandbox.output_of("messages", STREAM, "--state", str(state)).splitlines()
    new_messages = [json.loads(line) for line in lines]
    assert new_messages[0]["type"] == "SCHEMA"
    assert [
        message["batch_id"] for message in new_messages if message["type"] == "BATCH"
    ] == batch_ids[7:]
    state.write_text(json.dumps(states[-1]["value"]))
    assert demo.sandbox.output_of("messages", STREAM, "--state", str(state)) == ""


@pytest.mark.parametrize("key_type", ["name", "path", "id"])
def test_explain_accepts_name_path_and_id(demo: Demo, key_type: str) -> None:
    path = demo.folder / "landing" / "orders-2026-01-24.csv"
    key = {"name": path.name, "path": str(path), "id": "24"}[key_type]
    [item] = demo.sandbox.json_of("explain", key)["items"]
    [attempt] = item["attempts"]
    assert (item["item_id"], item["location"]) == (24, to_uri(path))
    assert (item["stream"], item["batch_id"]) == (STREAM, "00000022-00000027")
    assert (item["now"], item["generation"]) == ("unchanged since", 1)
    assert (attempt["number"], attempt["status"]) == (1, "succeeded")
    assert attempt["read"] == attempt["written"] + 1
    assert attempt["quarantined"] == 1


def test_explain_of_an_unknown_file_fails(demo: Demo) -> None:
    result = demo.sandbox.run("explain", "orders-1999-01-01.csv")
    assert result.returncode == 1
    assert "orders-1999-01-01.csv is not a registered item" in result.stdout
    assert "no such file in the landing" in result.stdout
    assert "Traceback" not in result.stderr


def test_explain_prints_the_steps_in_order(demo: Demo) -> None:
    text = demo.sandbox.output_of("explain", "orders-2026-01-24.csv")
    steps = ["1 land", "2 register", "3 plan", "4 partition", "5 claim", "6 encode", "7 publish"]
    positions = [text.index(step) for step in steps]
    assert positions == sorted(positions)
    assert f"{STREAM}-00000022-00000027-a1-" in text


def test_status_counts_published_batches(demo: Demo) -> None:
    [status] = demo.sandbox.json_of("status")["streams"]
    assert (status["stream"], status["items_waiting"], status["unfinished"]) == (STREAM, 0, [])
    assert {state: count for state, count in status["batches"].items() if count} == {
        "published": 10
    }


def _digests(storage: Path) -> list[list[str]]:
    return [[part["sha256"] for part in manifest["part_files"]] for manifest in manifests(storage)]


def test_checks_of_the_demo_pass(demo: Demo) -> None:
    """The malformed line is intentional, and the stream file allows it."""
    [stream] = demo.sandbox.json_of("verify")["streams"]
    assert stream["passed"]
