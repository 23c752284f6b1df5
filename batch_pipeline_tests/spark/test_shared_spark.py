"""Several sessions on one warm server: a small job does not wait for all tasks of a large one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batch_pipeline.spark.spark_connect import SparkConnectServer

pytestmark = pytest.mark.long

TASKS = 40
# The tasks of the large job hold the two cores until they are let go, one by one.
PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path
from batch_pipeline.spark.spark_connect import ConnectSession

remote, folder, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
large, small = ConnectSession(remote, {}).session, ConnectSession(remote, {}).session

def hold(batches):
    for batch in batches:
        number = batch.column(0)[0].as_py()
        Path(folder, f"begun-{number}").touch()
        while not Path(folder, f"let-go-{number}").exists():
            time.sleep(0.01)
        yield batch

def same(batches):
    yield from batches

def run(session, count, function):
    session.range(0, count, 1, count).mapInArrow(function, "id long").collect()

def begun():
    return sorted(int(path.name.partition("-")[2]) for path in Path(folder).glob("begun-*"))

run(small, 1, same)
first = threading.Thread(target=run, args=(large, tasks, hold))
first.start()
while len(begun()) < 2:
    time.sleep(0.01)
second = threading.Thread(target=run, args=(small, 1, same))
second.start()
let_go = 0
while second.is_alive() and let_go < tasks:
    if let_go < len(begun()):
        Path(folder, f"let-go-{begun()[let_go]}").touch()
        let_go += 1
    second.join(0.05)
print(json.dumps(len(begun())), flush=True)
for number in range(tasks):
    Path(folder, f"let-go-{number}").touch()
first.join()
second.join()
os._exit(0)  # the threads of gRPC would keep it
"""


def test_small_job_takes_its_turn_beside_a_large_one(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with SparkConnectServer(tmp_path / "home", conf={"spark.master": "local[2]"}) as server:
        words = [sys.executable, "-c", PROGRAM, server.remote, str(marks), str(TASKS)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    assert json.loads(done.stdout) < TASKS / 2
    assert len(list(marks.glob("begun-*"))) == TASKS
