"""`batch-pipeline reprocess`: published batches made once more, and one that cannot be."""

import json
import re
import signal
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    CompletedCommand,
    Sandbox,
    json_records,
    wait_until,
)

KEYS = [f"{number:08}-{number:08}" for number in (1, 2, 3)]
FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """Three published batches of one file each, the second of which has changed since."""
    sandbox = shared_sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    sandbox.write_stream("orders", batch={"max_count": 1})
    sandbox.land("orders", FILES)
    sandbox.output_of("run")
    sandbox.land("orders", {"2.csv": b"id\n20\n"})
    return sandbox


@pytest.fixture(scope="module")
def ended(sandbox: Sandbox) -> CompletedCommand:
    """All of it made once more."""
    return sandbox.run("reprocess", "orders", "--all", "--json")


def _batches(ended: CompletedCommand) -> list[tuple[Any, ...]]:
    told = json.loads(ended.stdout)["batches"]
    return [(one["batch_id"], one["generation"], one["is_new"]) for one in told]


def test_batch_that_fails_keeps_its_generation_and_its_neighbours_get_the_next(
    ended: CompletedCommand,
) -> None:
    assert ended.returncode == 3, ended.stderr
    assert _batches(ended) == [(KEYS[0], 2, True), (KEYS[1], 1, False), (KEYS[2], 2, True)]
    assert "2.csv: changed since it was registered" in ended.stderr


@pytest.mark.usefixtures("ended")
def test_chosen_batch_alone_is_made_once_more(sandbox: Sandbox) -> None:
    sandbox.land("orders", FILES)
    done = sandbox.run("reprocess", "orders", "--batch", KEYS[1], "--json")
    assert done.returncode == 0, done.stderr
    assert _batches(done) == [(KEYS[1], 2, True)]
    pages = [json.loads(path.read_text()) for path in sandbox.storage("orders").glob("manifests/*")]
    assert sorted((one["batch_id"], one["generation"]) for one in pages) == sorted(
        (key, generation) for key in KEYS for generation in (1, 2)
    )
    assert sorted(int(one["id"]) for one in json_records(sandbox.storage("orders"))) == [
        *(1, 1, 2, 2, 3, 3)
    ]


@pytest.mark.long
def test_interrupted_call_says_how_to_go_on_with_the_rest(sandbox: Sandbox) -> None:
    sandbox.write_stream("visits", batch={"max_count": 1})
    sandbox.land("visits", FILES)
    sandbox.output_of("run", "visits")
    manifests = sandbox.storage("visits") / "manifests"
    slow = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:3")
    process = slow.start("reprocess", "visits", "--all")
    wait_until(lambda: len([*manifests.iterdir()]) > len(FILES), "the first is made once more")
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 130
    said = " ".join(slow.output.read_text().split())
    found = re.search(r"batch-pipeline (reprocess visits --until \S+)", said)
    assert found is not None, said
    rest = sandbox.run(*found[1].split(), "--json")
    assert rest.returncode == 0, rest.stderr
    assert _batches(rest) == [(key, 2, True) for key in KEYS[1:]]
    made = [json.loads(path.read_text()) for path in manifests.iterdir()]
    assert sorted(one["generation"] for one in made) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("words", [(), ("--all", "--batch", KEYS[0])])
def test_what_is_to_be_made_has_to_be_said(sandbox: Sandbox, words: tuple[str, ...]) -> None:
    refused = sandbox.run("reprocess", "orders", *words)
    assert refused.returncode == 2
    assert "--batch BATCHES, --all, --since TIME or --until TIME" in refused.stderr
