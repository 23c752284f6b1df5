"""Failpoints: named points of the protocol at which a test can kill, stop, fail or delay a process.

They do nothing unless `BATCH_PIPELINE_FAILPOINTS` names the point, for example
`publish.before_commit=kill,encode.after_claim=sleep:3`. The variable must not change anything else.
"""

import os
import signal
import time

VARIABLE = "BATCH_PIPELINE_FAILPOINTS"


def failpoint(name: str) -> None:
    """Run the action that `BATCH_PIPELINE_FAILPOINTS` sets for this point.

    Actions are `kill`, `raise`, `sleep:SECONDS` and `stop`, which lasts until SIGCONT.

    Raises:
        RuntimeError: the action is `raise`.
    """
    configured = os.environ.get(VARIABLE)
    if not configured:
        return
    for entry in configured.split(","):
        point, _, mode = entry.partition("=")
        if point != name:
            continue
        action, _, argument = mode.partition(":")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "raise":
            raise RuntimeError(f"failpoint {name}")
        elif action == "sleep":
            time.sleep(float(argument))
