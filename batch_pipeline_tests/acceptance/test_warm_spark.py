"""`run` with BATCH_PIPELINE_SPARK_KEEP_MINUTES: the server that it keeps, its reuse and its end."""

import signal
from typing import Any

import psutil
import pytest

from batch_pipeline_tests.acceptance.sandbox import LONGEST_SECONDS, Sandbox, wait_until
from batch_pipeline_tests.concurrency import is_running

pytestmark = pytest.mark.long  # without --long, spark/test_warm_server.py covers the server

CSV = b"id,name\n1,one\n2,two\n"
LARGE_CSV = b"id,name\n" + b"".join(b"%d,name %d\n" % (n, n) for n in range(1_000_000))


def records_written(result: dict[str, Any]) -> list[int]:
    [stream] = result["streams"]
    return [batch["records"]["written"] for batch in stream["published"]]


def test_runs_share_a_server_until_it_is_stopped(sandbox: Sandbox) -> None:
    sandbox = sandbox.with_variables(BATCH_PIPELINE_SPARK_KEEP_MINUTES="5")
    sandbox.write_stream("orders")
    pids = []
    for name in ("a.csv", "b.csv"):
        sandbox.land("orders", {name: CSV})
        assert records_written(sandbox.json_of("run")) == [2]
        server = sandbox.json_of("status")["spark_server"]
        assert server["keep_minutes"] == 5
        pids.append(server["pid"])
    assert pids[0] == pids[1]
    keeper = psutil.Process(pids[0])
    processes = [keeper, *keeper.children(recursive=True)]
    shown = sandbox.output_of("status")
    assert f"A warm Spark server runs (process {pids[0]}). It ends after 5 idle minutes" in shown
    stopped = sandbox.output_of("dev", "--stop")
    assert stopped == f"The warm Spark server (process {pids[0]}) was stopped.\n"
    assert [process for process in processes if is_running(process)] == []
    assert "No warm Spark server runs for" in sandbox.output_of("dev", "--stop")
    assert "spark_server" not in sandbox.json_of("status")


def test_interrupted_run_leaves_the_server_and_the_next_run_publishes(sandbox: Sandbox) -> None:
    sandbox = sandbox.with_variables(BATCH_PIPELINE_SPARK_KEEP_MINUTES="5")
    sandbox.write_stream("orders")
    sandbox.land("orders", {"large.csv": LARGE_CSV})
    process = sandbox.start("run")
    wait_until(lambda: [*sandbox.storage("orders").rglob("*.gz")] != [], "a part file is written")
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 130
    server = sandbox.json_of("status")["spark_server"]
    assert records_written(sandbox.json_of("run")) == [1_000_000]
    assert sandbox.json_of("status")["spark_server"] == server
    sandbox.output_of("dev", "--stop")
