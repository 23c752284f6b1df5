"""A command that prints Singer messages, run with or without a state."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A command line that accepts `--state FILE` and prints Singer messages."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def lines(self, state: Mapping[str, Any] | None = None) -> list[bytes]:
        """Run the command, which must succeed, and return its output lines."""
        with tempfile.TemporaryDirectory() as folder:
            command = list(self.command)
            if state is not None:
                file = Path(folder) / "state.json"
                file.write_text(json.dumps(state), encoding="utf-8")
                command += ["--state", str(file)]
            completed = subprocess.run(
                command,
                cwd=folder,
                env=dict(self.environment),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=600,
                check=False,
            )
        assert completed.returncode == 0, completed.stderr.decode()
        return completed.stdout.splitlines(keepends=True)


def parsed(lines: Sequence[bytes], kind: str | None = None) -> list[dict[str, Any]]:
    """Parse lines as messages; keep those of one kind, if given."""
    messages = [json.loads(line) for line in lines]
    return [message for message in messages if kind in (None, message["type"])]
