"""Logs that several processes append to, kept from growing without end.

Who writes to one has it open for appending and is not asked: it goes on in the same file.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 10_000_000


def bound(log: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Move what a log holds to `<name>.old.log` once that is too long; tell whether it was.

    What was there before is replaced, so that both hold at most twice the limit, and what was
    written since the last look. Where the copy cannot be made, the log stays as it is. A line that
    is written in the instant between the end of the copy and the cut is lost.
    """
    with suppress(OSError):
        if log.stat().st_size <= limit_bytes:
            return False
        old, draft = log.with_suffix(".old.log"), log.with_suffix(".new.log")
        try:
            draft.touch(0o600)
            draft.chmod(log.stat().st_mode & 0o777)
            with log.open("rb") as source, draft.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                draft.replace(old)
                shutil.copyfileobj(source, target)  # what came meanwhile
                target.flush()
                os.truncate(log, 0)
        finally:
            draft.unlink(missing_ok=True)
        return True
    return False
