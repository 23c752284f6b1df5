"""Small programs that act as Singer targets, correct and faulty ones."""

import gzip
import hashlib
import json
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from batch_pipeline.load.singer_loader import SingerLoader
from batch_pipeline.model.load import Loading, SingerTarget
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline_tests.factories import batch, manifest

START = """
import json, os, signal, sys, time
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
log = open(config["out"], "a")
def messages():
    for line in sys.stdin:
        log.write(line)
        log.flush()
        yield json.loads(line)
def emit(value):
    print(json.dumps(value), flush=True)
"""
GOOD = """
state = None
for message in messages():
    if message["type"] == "STATE":
        state = message["value"]
if state is not None:
    emit(state)
"""
EAGER = """
for message in messages():
    if message["type"] == "STATE":
        emit(message["value"])
"""
REPEATS_FIRST_STATE = """
states = [message["value"] for message in messages() if message["type"] == "STATE"]
for state in [*states, states[0]]:
    emit(state)
"""
SILENT = "for message in messages(): pass"
ACKNOWLEDGES_FIRST_ONLY = """
emitted = False
for message in messages():
    if message["type"] == "STATE" and not emitted:
        emit(message["value"])
        emitted = True
"""
PRINTS_NO_JSON = "for message in messages(): print('loaded 5 rows', flush=True)"
PRINTS_UNKNOWN_STATE = """
for message in messages(): pass
emit({"bookmarks": {"orders": {"publish_number": 99}}})
"""
FAILS_AFTER_STATE = EAGER + "sys.stderr.write('disk full, password hunter2!\\\\n'); sys.exit(4)"
KILLS_ITSELF = "next(messages()); os.kill(os.getpid(), signal.SIGKILL)"
KILLS_ITSELF_AT_SECOND_STATE = """
states = 0
for message in messages():
    if message["type"] == "STATE":
        states += 1
        if states == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        emit(message["value"])
"""
NEVER_READS = "time.sleep(600)"
HANGS = "next(messages()); time.sleep(600)"
HANGS_AND_IGNORES_SIGTERM = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
next(messages())
time.sleep(600)
"""
FLOODS_STDERR = """
import threading
def flood():
    for number in range(40_000):
        sys.stderr.write(f"line {number} {'x' * 100}\\\\n")
thread = threading.Thread(target=flood)
thread.start()
state = None
for message in messages():
    if message["type"] == "STATE":
        state = message["value"]
thread.join()
emit(state)
"""
LEAKS_AT_LOG_LIMIT = "sys.stderr.write('hunter2!' + 'x' * (64 * 2**10 - 6) + '\\\\n'); sys.exit(4)"
LEAKS_IN_LONG_LINE = "sys.stderr.write('x' * 2**20 + 'hunter2!' + '\\\\nthe end'); sys.exit(4)"
LEAKS_IN_STATE = """
for message in messages():
    if message["type"] == "STATE":
        emit({**message["value"], "password": config["password"]})
"""
ENDS_EARLY = "sys.exit(0)"
LEAVES_CHILD_RUNNING = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for message in messages():
    if message["type"] == "STATE":
        emit(message["value"])
"""


def script(folder: Path, body: str) -> tuple[str, ...]:
    """Write a program and return the command that runs it."""
    path = folder / "target.py"
    path.write_text(START + body.replace("\\\\n", "\\n"), encoding="utf-8")
    return sys.executable, str(path)


def settings_of(folder: Path, body: str) -> dict[str, Any]:
    """Write a program into a new folder and return its target settings for a stream file."""
    folder.mkdir()
    return {"command": list(script(folder, body)), "config": {"out": str(folder / "read")}}


def loader(folder: Path, body: str, **overrides: Any) -> SingerLoader:
    """Return a loader for a target that logs every line it reads to the file `read`."""
    settings: dict[str, Any] = {
        "name": "warehouse",
        "command": script(folder, body),
        "config": {"out": str(folder / "read")},
        "timeout": timedelta(minutes=1),
    }
    environment = {"PASSWORD": "hunter2!"}
    target = SingerTarget(**(settings | overrides))
    return SingerLoader(stream="orders", target=target, environment=environment)


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the messages that the target has read."""
    lines = (folder / "read").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def part_of(path: Path, order_ids: Iterable[int]) -> PartFile:
    """Write a part file with these order ids."""
    return lines_file(path, (f'{{"order_id":{number}}}' for number in order_ids))


def lines_file(path: Path, records: Iterable[str]) -> PartFile:
    """Write a part file with these records."""
    lines = [f"{record}\n" for record in records]
    content = gzip.compress("".join(lines).encode(), mtime=0)
    path.write_bytes(content)
    return PartFile(
        uri=to_uri(path),
        records=len(lines),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def loading(folder: Path, number: int = 1, *, records: int = 2, **overrides: Any) -> Loading:
    """Return the n-th generation, whose only file has records with `order_id` from 1."""
    part = part_of(folder / f"part-{number}.jsonl.gz", range(1, records + 1))
    loaded_batch = batch(3 * number - 2, 3 * number)
    attributes: dict[str, Any] = {
        "stream": "orders",
        "publish_number": number,
        "label": loaded_batch.label,
        "manifest": manifest(batch=loaded_batch, part_files=(part,)),
        "message_name": "orders",
    }
    return Loading(**(attributes | overrides))
