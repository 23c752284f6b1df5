"""`batch-pipeline reprocess`: published batches encoded again, and one that fails."""

import json
import re
import shlex
import signal
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    CompletedCommand,
    Sandbox,
    json_records,
    manifests,
    wait_until,
)

KEYS = [f"{number:08}-{number:08}" for number in (1, 2, 3)]
FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """Three published batches of one file each; the second file has changed since."""
    sandbox = shared_sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    sandbox.write_stream("orders", batch={"max_count": 1})
    sandbox.land("orders", FILES)
    sandbox.output_of("run")
    sandbox.land("orders", {"2.csv": b"id\n20\n"})
    return sandbox


def _generations(result: CompletedCommand) -> list[tuple[Any, ...]]:
    batches = json.loads(result.stdout)["batches"]
    return [(batch["batch_id"], batch["generation"], batch["is_new"]) for batch in batches]


def test_failed_batch_keeps_its_generation_and_others_get_the_next(sandbox: Sandbox) -> None:
    """Afterwards the file is repaired, and only its batch is reprocessed."""
    reprocessed = sandbox.run("reprocess", "orders", "--all", "--json")
    assert reprocessed.returncode == 3, reprocessed.stderr
    expected = [(KEYS[0], 2, True), (KEYS[1], 1, False), (KEYS[2], 2, True)]
    assert _generations(reprocessed) == expected
    assert "2.csv: changed since it was registered" in reprocessed.stderr
    sandbox.land("orders", FILES)
    result = sandbox.run("reprocess", "orders", "--batch", KEYS[1], "--json")
    assert result.returncode == 0, result.stderr
    assert _generations(result) == [(KEYS[1], 2, True)]
    published = [(it["batch_id"], it["generation"]) for it in manifests(sandbox.storage("orders"))]
    assert published == [(key, generation) for key in KEYS for generation in (1, 2)]
    ids = sorted(int(record["id"]) for record in json_records(sandbox.storage("orders")))
    assert ids == [1, 1, 2, 2, 3, 3]


@pytest.mark.long
def test_interrupted_reprocess_prints_the_command_to_continue(sandbox: Sandbox) -> None:
    sandbox.write_stream("visits", batch={"max_count": 1})
    sandbox.land("visits", FILES)
    sandbox.output_of("run", "visits")
    storage = sandbox.storage("visits")
    slow = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:3")
    process = slow.start("reprocess", "visits", "--since", "2020-01-01 08:00Z")
    wait_until(lambda: len(manifests(storage)) > len(FILES), "the first batch is published again")
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 130
    output = " ".join(slow.output.read_text().split())
    assert "run the same command again" not in output
    match = re.search(r"batch-pipeline (reprocess visits --since .* --until \S+)", output)
    assert match is not None, output
    continued = sandbox.run(*shlex.split(match[1]), "--json")
    assert continued.returncode == 0, continued.stderr
    assert _generations(continued) == [(key, 2, True) for key in KEYS[1:]]
    assert [manifest["generation"] for manifest in manifests(storage)] == [1, 2] * 3
