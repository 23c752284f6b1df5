"""Our commands keep the rules of BATCH producers, and the rules notice who does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.singer.messages import JSON_SCHEMA, batch_message, line, messages
from batch_pipeline_tests.conformance.producer import Producer, parsed
from batch_pipeline_tests.conformance.published_home import PublishedHome
from batch_pipeline_tests.conformance.rules import broken_resume, broken_rules
from batch_pipeline_tests.encode.writers.published_parts import part_paths, published_lines

OURS = json.loads(JSON_SCHEMA.read_text(encoding="utf-8"))


@pytest.fixture(params=["messages orders", "messages parcels", "tap"])
def producer(request: pytest.FixtureRequest, home: PublishedHome) -> Producer:
    """Each command of ours that prints BATCH messages."""
    command, _, stream = request.param.partition(" ")
    return home.messages(stream) if command == "messages" else home.tap(mode="batch")


def test_commands_of_ours_keep_all_rules(producer: Producer) -> None:
    lines = producer.lines()
    assert broken_rules(lines, OURS) == []
    assert len(parsed(lines, "BATCH")) > 0


def test_commands_of_ours_resume_with_exactly_the_rest(producer: Producer) -> None:
    assert broken_resume(producer) == []


def test_batches_are_those_published_of_all_jobs_in_their_newest_generation(
    home: PublishedHome,
) -> None:
    sent = parsed(home.messages("orders").lines(), "BATCH")
    assert [(one["job"], one["batch_id"][-3:], one["generation"]) for one in sent] == [
        ("orders", "002", 1),
        ("orders", "006", 1),
        ("orders", "004", 2),
        ("orders.2023", "002", 1),
    ]
    assert [one["record_count"] for one in sent] == [4, 2, 3, 4]
    assert [one["schema_version"] for one in sent] == [1, 2, 2, 2]


@pytest.fixture
def right(tmp_path: Path) -> list[bytes]:
    """Lines that keep the rules."""
    one = published_lines(tmp_path, b'{"order_id":1}', b'{"order_id":2}')
    return [line(message).encode() for message in messages([(1, one)], stream="orders")]


def changed(text: bytes, **changes: Any) -> bytes:
    """Change keys of a message."""
    return json.dumps({**json.loads(text), **changes}).encode() + b"\n"


def test_rules_have_nothing_against_lines_that_are_right(right: list[bytes]) -> None:
    assert broken_rules(right, OURS) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoding": {"format": "jsonl", "compression": "none"}}, "is gzip, and its label none"),
        ({"encoding": {"format": "jsonl", "compression": "gzip", "_x": 1}}, "SDK refuses"),
        ({"manifest": ["batches/a"], "sha256": ["ab" * 32]}, "is not absolute"),
        ({"manifest": ["file:///a%20b"], "sha256": ["ab" * 32]}, "is not there"),
        ({"sha256": ["ab" * 32]}, "another SHA-256"),
        ({"record_count": 3}, "record_count is 3, and the files have 2"),
        ({"bytes": 3}, "bytes is 3, and the files have"),
        ({"stream": "sales"}, "before the SCHEMA of sales"),
    ],
)
def test_rules_notice_a_batch_that_is_wrong(
    right: list[bytes], changes: dict[str, Any], expected: str
) -> None:
    schema, batch, state = right
    [problem, *_] = broken_rules([schema, changed(batch, **changes), state])
    assert problem.startswith("line 2: ")
    assert expected in problem


def test_rules_notice_records_that_their_schema_does_not_know(right: list[bytes]) -> None:
    schema, batch, state = right
    other = changed(
        schema, schema={"type": "object", "properties": {}}, key_properties=["customer"]
    )
    strange, missing = broken_rules([other, batch, state])
    assert "records have ['order_id'], which the SCHEMA has not" in strange
    assert "records have no customer, which is a key" in missing


def test_rules_notice_what_is_out_of_order(right: list[bytes]) -> None:
    schema, batch, state = right
    assert broken_rules([batch, schema, state]) == ["line 1: BATCH before the SCHEMA of orders"]
    assert broken_rules([schema, batch, batch, state]) == [
        "line 3: no STATE after the BATCH of line 2"
    ]
    assert broken_rules([schema, batch]) == ["line 2: no STATE after the BATCH of line 2"]


def test_rules_notice_lines_that_are_no_messages(right: list[bytes]) -> None:
    schema, batch, state = right
    assert [problem[:16] for problem in broken_rules([b"hi\n", b"[]\n", schema])] == [
        "line 1: is no me",
        "line 2: is no me",
    ]
    assert broken_rules([schema, batch, state.strip()]) == ["line 3: has no end"]


def test_rules_notice_a_resume_that_gives_too_much(tmp_path: Path) -> None:
    one = published_lines(tmp_path, b'{"order_id":1}')
    text = "".join(line(message) for message in messages([(1, one)], stream="orders"))
    assert batch_message(one)["manifest"] == [f"file://{part_paths(one)[0]}"]
    program = tmp_path / "forgetful"
    program.write_text(text, encoding="utf-8")
    forgetful = Producer(command=["sh", "-c", f"cat {program}"], environment={"PATH": "/bin"})
    assert broken_resume(forgetful) == ["after batch 1: 1 of 0 come"]
