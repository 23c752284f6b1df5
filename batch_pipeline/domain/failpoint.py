"""Named points of the protocol at which a test can make the process die, stop, fail or wait.

A no-op unless `BATCH_PIPELINE_FAILPOINTS` names the point, for example
`publish.before_commit=kill,encode.after_claim=sleep:3`. Nothing else may be switched on from here.
"""

import os
import signal
import time

VARIABLE = "BATCH_PIPELINE_FAILPOINTS"


class FailpointError(RuntimeError):
    """Raised by a failpoint in mode `raise`."""


def failpoint(name: str) -> None:
    """Do what `BATCH_PIPELINE_FAILPOINTS` says for this point.

    `kill`, `raise`, `sleep:SECONDS`, or `stop`, after which the process goes on at a SIGCONT.

    Raises:
        FailpointError: the mode is `raise`.
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
            raise FailpointError(name)
        elif action == "sleep":
            time.sleep(float(argument))
