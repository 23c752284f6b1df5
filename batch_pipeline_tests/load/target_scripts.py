"""Small programs that act as Singer targets, correct and faulty ones."""

import gzip
import json
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from batch_pipeline.load.singer_loader import SingerLoader
from batch_pipeline.model.load import Loading, SingerTarget
from batch_pipeline.model.manifest import PartFile
from batch_pipeline_tests.factories import batch, manifest
from batch_pipeline_tests.published_files import described

START = """
import json, os, signal, sys, time
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
log = open(config["out"], "a")
def messages():
    for line in sys.stdin:
        log.write(line)
        log.flush()
        yield json.loads(line)
def states():
    return (message["value"] for message in messages() if message["type"] == "STATE")
def emit(value):
    print(json.dumps(value), flush=True)
"""
GOOD = """
state = None
for state in states(): pass
if state is not None:
    emit(state)
"""
EAGER = "for state in states(): emit(state)\n"
REPEATS_FIRST_STATE = """
sent = list(states())
for state in [*sent, sent[0]]:
    emit(state)
"""
SILENT = "for message in messages(): pass"
ACKNOWLEDGES_FIRST_ONLY = f"emit(next(states()))\n{SILENT}"
PRINTS_NO_JSON = "for message in messages(): print('loaded 5 rows', flush=True)"
PRINTS_UNKNOWN_STATE = f"""{SILENT}
emit({{"bookmarks": {{"orders": {{"publish_number": 99}}}}}})
"""
FAILS_AFTER_STATE = EAGER + "sys.stderr.write('disk full, password hunter2!\\\\n'); sys.exit(4)"
KILLS_ITSELF_AT_SECOND_STATE = """
for number, state in enumerate(states(), start=1):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    emit(state)
"""
NEVER_READS = "time.sleep(600)"
HANGS = "next(messages()); time.sleep(600)"
HANGS_AND_IGNORES_SIGTERM = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
next(messages())
time.sleep(600)
"""
FLOODS_STDERR = f"""
import threading
def flood():
    for number in range(4_000):
        sys.stderr.write(f"line {{number}} {{'x' * 100}}\\\\n")
threading.Thread(target=flood).start()
{GOOD}
"""
LEAKS_AT_LOG_LIMIT = "sys.stderr.write('hunter2!' + 'x' * (64 * 2**10 - 6) + '\\\\n'); sys.exit(4)"
LEAKS_IN_LONG_LINE = "sys.stderr.write('x' * 2**20 + 'hunter2!' + '\\\\nthe end'); sys.exit(4)"
LEAKS_IN_STATE = "for state in states(): emit({**state, 'password': config['password']})"
ENDS_EARLY = "sys.exit(0)"
LEAVES_CHILD_RUNNING = f"""
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
{EAGER}
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
    config = {"out": str(folder / "read"), **overrides.pop("config", {})}
    command = script(folder, body)
    settings: dict[str, Any] = {"command": command, "timeout": timedelta(minutes=1), **overrides}
    environment = {"PASSWORD": "hunter2!"}
    target = SingerTarget(name="warehouse", config=config, **settings)
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
    return described(path, len(lines))


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
