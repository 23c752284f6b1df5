"""The project of the how-tos: what a page begins with, and a terminal to type its commands in."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.cli.console import exit_code
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.migrate import upgrade
from batch_pipeline.model.errors import PipelineError
from batch_pipeline_tests.acceptance.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a page begins with: a stream, its files, and whether these are published.

    With a `revision` it is an inventory of its own, which an earlier release has made.
    """

    stream: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    published: bool = False
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Shop:
    """The project of the pages: a sandbox, and what stands there for names of the pages."""

    sandbox: Sandbox
    stands_for: Mapping[str, str]
    buckets: Any  # a client of their store

    def open(self, situation: Situation) -> None:
        """Write the stream file and the files of a page, and publish what is to be published."""
        for name, content in situation.files.items():
            if name.startswith("s3://"):
                bucket, _, key = self._here(name).removeprefix("s3://").partition("/")
                self.buckets.put_object(Bucket=bucket, Key=key, Body=content)
                continue
            path = self.sandbox.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (1_750_000_000, 1_750_000_000))
        self.sandbox.write_stream(situation.stream, **situation.attributes)
        if situation.published:
            code, said = self.enter(f"batch-pipeline run {situation.stream}")
            assert code == 0, said

    def at_revision(self, revision: str, url: str) -> "Shop":
        """Return the same project with another inventory, in an empty database."""
        database = open_database(url, migrated=None)
        with closing(database), database.engine.begin() as connection:
            upgrade(connection, revision)
        return replace(self, sandbox=self.sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=url))

    def change(self, stream: str, attributes: Mapping[str, Any]) -> None:
        """Set keys of a stream file as a page says; keys of a section are added to it."""
        path = self.sandbox.streams / stream / "defs.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key, value in yaml.safe_load(self._here(yaml.safe_dump(attributes))).items():
            known = document["attributes"].get(key)
            both = isinstance(value, dict) and isinstance(known, dict)
            document["attributes"][key] = {**known, **value} if both else value
        path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def enter(self, command: str) -> tuple[int, str]:
        """Run a command, and give its exit code and what a terminal would show.

        Commands of the product run in this process: to start another takes most of their time.
        """
        program, *words = shlex.split(self._here(command))
        if program != "batch-pipeline":
            return self._run_elsewhere(self._here(command))
        result = CliRunner().invoke(cli, words, env=self._variables)
        said = result.output
        if isinstance(result.exception, PipelineError):  # as `main` tells it
            return exit_code([result.exception]), self._as_in_pages(
                f"{said}error: {result.exception}\n"
            )
        assert result.exc_info is None or result.exc_info[0] is SystemExit, result.exc_info
        return result.exit_code, self._as_in_pages(said)

    def _run_elsewhere(self, command: str) -> tuple[int, str]:
        bin_folder = str(Path(sys.executable).parent)
        environment = self.sandbox.environment
        environment["PATH"] = os.pathsep.join([bin_folder, environment["PATH"]])
        ended = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=self.sandbox.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ended.returncode, self._as_in_pages(ended.stdout)

    @property
    def _variables(self) -> dict[str, str | None]:
        """The variables of a sandbox; what else the product would read is taken away."""
        environment = self.sandbox.environment
        return {name: None for name in os.environ if name not in environment} | environment

    def _here(self, text: str) -> str:
        for name, there in self.stands_for.items():
            text = text.replace(name, there)
        return text

    def _as_in_pages(self, text: str) -> str:
        for name, there in self.stands_for.items():
            text = text.replace(there, name)
        return text
