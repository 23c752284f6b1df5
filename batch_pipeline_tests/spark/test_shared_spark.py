"""Sessions that share a server: a small job does not wait for all tasks of a large one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batch_pipeline.spark.spark_connect import SparkConnectServer

pytestmark = pytest.mark.long

TASKS = 40
# The tasks of the large job occupy the two cores until they are released, one by one.
PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path
from batch_pipeline.spark.spark_connect import ConnectSession

remote, folder, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
large, small = ConnectSession(remote, {}).session, ConnectSession(remote, {}).session

def hold(batches):
    for batch in batches:
        number = batch.column(0)[0].as_py()
        Path(folder, f"started-{number}").touch()
        while not Path(folder, f"release-{number}").exists():
            time.sleep(0.01)
        yield batch

def same(batches):
    yield from batches

def run(session, count, function):
    session.range(0, count, 1, count).mapInArrow(function, "id long").collect()

def started():
    return sorted(int(path.name.partition("-")[2]) for path in Path(folder).glob("started-*"))

run(small, 1, same)
first = threading.Thread(target=run, args=(large, tasks, hold))
first.start()
while len(started()) < 2:
    time.sleep(0.01)
second = threading.Thread(target=run, args=(small, 1, same))
second.start()
released = 0
while second.is_alive() and released < tasks:
    if released < len(started()):
        Path(folder, f"release-{started()[released]}").touch()
        released += 1
    second.join(0.05)
print(json.dumps(len(started())), flush=True)
for number in range(tasks):
    Path(folder, f"release-{number}").touch()
first.join()
second.join()
os._exit(0)  # the threads of gRPC would keep the process running
"""


def test_small_job_is_not_blocked_by_large_job(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with SparkConnectServer(tmp_path / "home", conf={"spark.master": "local[2]"}) as server:
        command = [sys.executable, "-c", PROGRAM, server.remote, str(marks), str(TASKS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert json.loads(done.stdout) < TASKS / 2
    assert len(list(marks.glob("started-*"))) == TASKS
