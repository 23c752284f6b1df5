"""A command that prints Singer lines, run with or without a state."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A command line that takes `--state FILE` and prints Singer lines."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def lines(self, state: Mapping[str, Any] | None = None) -> list[bytes]:
        """Run the command, which must succeed, and return its output as lines."""
        with tempfile.TemporaryDirectory() as folder:
            words = list(self.command)
            if state is not None:
                file = Path(folder) / "state.json"
                file.write_text(json.dumps(state), encoding="utf-8")
                words += ["--state", str(file)]
            ended = subprocess.run(
                words,
                cwd=folder,
                env=dict(self.environment),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=600,
                check=False,
            )
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.splitlines(keepends=True)


def parsed(lines: Sequence[bytes], kind: str | None = None) -> list[dict[str, Any]]:
    """Parse lines as messages, of one kind if it is given."""
    messages = [json.loads(line) for line in lines]
    return [one for one in messages if kind in (None, one["type"])]
