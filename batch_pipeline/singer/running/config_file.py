"""The configuration that a target is started with: variables filled in, in a private file."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_pipeline.domain.errors import SettingError

VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SHORTEST_SECRET = 4  # shorter ones would take half of every sentence away


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration with its variables filled in, and what these hold."""

    values: Mapping[str, Any]
    secrets: Mapping[str, str]

    @classmethod
    def filled(
        cls, written: Mapping[str, Any], environment: Mapping[str, str], where: str
    ) -> "Config":
        """Fill values that are `$NAME` from the environment; `where` says whose they are.

        Raises:
            SettingError: a variable is not set.
        """
        secrets: dict[str, str] = {}

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: fill(one) for name, one in value.items()}
            if isinstance(value, list | tuple):
                return [fill(one) for one in value]
            match = VARIABLE.fullmatch(value) if isinstance(value, str) else None
            if match is None:
                return value
            found = environment.get(match[1])
            if found is None:
                step = "Set it, then run `batch-pipeline load` again."
                raise SettingError(match[1], where, "this variable is not set", step)
            secrets[match[1]] = found
            return found

        return cls({name: fill(one) for name, one in written.items()}, secrets)

    def hide(self, text: str) -> str:
        """Write the names of variables in place of what they hold."""
        for name, secret in sorted(self.secrets.items(), key=lambda one: -len(one[1])):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, f"${name}")
        return text

    @contextmanager
    def in_file(self) -> Iterator[Path]:
        """Write the configuration where only this user reads it, until the block ends."""
        folder = Path(tempfile.mkdtemp(prefix="batch-pipeline-target-"))  # made with mode 0700
        try:
            path = folder / "config.json"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(self.values, file)
            yield path
        finally:
            shutil.rmtree(folder, ignore_errors=True)
