"""The configuration that a target is started with: variables filled in, in a private file."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from batch_pipeline.domain.errors import SettingError
from batch_pipeline.singer.running.hiding import hidden_forms
from batch_pipeline.stores.private_folder import PrivateFolder

VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class Config:
    """A configuration with its variables filled in, and what these hold."""

    values: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)

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
        """Write the names of variables in place of what they hold, however that is written."""
        for secret, name in self._forms:
            text = text.replace(secret, name)
        return text

    def hide_in(self, value: Any) -> Any:
        """Do so in all texts of a JSON value."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide_in(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.hide_in(one) for one in value]
        return value

    @contextmanager
    def in_file(self) -> Iterator[Path]:
        """Write the configuration where only this user reads it, until the block ends.

        What a process that was killed has left is removed by the next one.
        """
        with PrivateFolder("target") as folder:
            path = folder.path / "config.json"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(self.values, file)
            yield path

    @cached_property
    def _forms(self) -> list[tuple[str, str]]:
        return hidden_forms(self.secrets)
