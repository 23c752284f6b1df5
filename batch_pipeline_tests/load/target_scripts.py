"""Small programs that behave as Singer targets of others do, well or badly."""

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
kept = open(config["out"], "a")
def messages():
    for line in sys.stdin:
        kept.write(line)
        kept.flush()
        yield json.loads(line)
def say(value):
    print(json.dumps(value), flush=True)
"""
GOOD = """
state = None
for message in messages():
    if message["type"] == "STATE":
        state = message["value"]
if state is not None:
    say(state)
"""
EAGER = """
for message in messages():
    if message["type"] == "STATE":
        say(message["value"])
"""
REPEATS_THE_FIRST = """
states = [message["value"] for message in messages() if message["type"] == "STATE"]
for state in [*states, states[0]]:
    say(state)
"""
SILENT = "for message in messages(): pass"
FIRST_ONLY = """
said = False
for message in messages():
    if message["type"] == "STATE" and not said:
        say(message["value"])
        said = True
"""
NO_JSON = "for message in messages(): print('loaded 5 rows', flush=True)"
WRONG_STATE = """
for message in messages(): pass
say({"bookmarks": {"orders": {"publish_number": 99}}})
"""
FAILS = EAGER + "sys.stderr.write('disk full, password hunter2!\\\\n'); sys.exit(4)"
KILLS_ITSELF = "next(messages()); os.kill(os.getpid(), signal.SIGKILL)"
DIES_AT_SECOND = """
states = 0
for message in messages():
    if message["type"] == "STATE":
        states += 1
        if states == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        say(message["value"])
"""
NEVER_READS = "time.sleep(600)"
HANGS = "next(messages()); time.sleep(600)"
HANGS_AND_IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
next(messages())
time.sleep(600)
"""
FLOODS = """
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
say(state)
"""
AT_THE_CUT = "sys.stderr.write('hunter2!' + 'x' * (64 * 2**10 - 6) + '\\\\n'); sys.exit(4)"
IN_A_LONG_LINE = "sys.stderr.write('x' * 2**20 + 'hunter2!' + '\\\\nthe end'); sys.exit(4)"
IN_ITS_STATE = """
for message in messages():
    if message["type"] == "STATE":
        say({**message["value"], "password": config["password"]})
"""
ENDS_EARLY = "sys.exit(0)"
CHILD_HOLDS_PIPES = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for message in messages():
    if message["type"] == "STATE":
        say(message["value"])
"""


def script(folder: Path, body: str) -> tuple[str, ...]:
    """Write a program and give the command that runs it."""
    path = folder / "target.py"
    path.write_text(START + body.replace("\\\\n", "\\n"), encoding="utf-8")
    return sys.executable, str(path)


def settings_of(folder: Path, body: str) -> dict[str, Any]:
    """Write a program into a new folder, and give what a stream file says of such a target."""
    folder.mkdir()
    return {"command": list(script(folder, body)), "config": {"out": str(folder / "read")}}


def loader(folder: Path, body: str, **overrides: Any) -> SingerLoader:
    """A loader of a target that keeps every line it reads in the file `read`."""
    facts: dict[str, Any] = {
        "name": "warehouse",
        "command": script(folder, body),
        "config": {"out": str(folder / "read")},
        "timeout": timedelta(minutes=1),
    }
    environment = {"PASSWORD": "hunter2!"}
    target = SingerTarget(**(facts | overrides))
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
    """A generation, numbered as its batch, whose only file has records with `order_id` from 1."""
    part = part_of(folder / f"part-{number}.jsonl.gz", range(1, records + 1))
    one = batch(3 * number - 2, 3 * number)
    facts: dict[str, Any] = {
        "stream": "orders",
        "publish_number": number,
        "label": one.label,
        "manifest": manifest(batch=one, part_files=(part,)),
        "message_name": "orders",
    }
    return Loading(**(facts | overrides))
