"""The example project of the how-to pages, and a shell to run their commands in."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from batch_pipeline_tests.acceptance.sandbox import Sandbox, run_program
from batch_pipeline_tests.regression.home_0_1_0 import restore_database


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSetup:
    """The initial state of a page: a stream, its files, and whether these are published.

    With `release_0_1_0`, the page has its own inventory, which that release wrote.
    """

    stream: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    published: bool = False
    release_0_1_0: bool = False


@dataclass(frozen=True, slots=True)
class ExampleProject:
    """A sandbox, and the texts that replace names on the pages."""

    sandbox: Sandbox
    replacements: Mapping[str, str]
    s3: Any  # a client

    def set_up(self, setup: PageSetup) -> None:
        """Write the stream file and the files of a page, and publish the files if needed."""
        for name, content in setup.files.items():
            if name.startswith("s3://"):
                bucket, _, key = self._to_sandbox(name).removeprefix("s3://").partition("/")
                self.s3.put_object(Bucket=bucket, Key=key, Body=content)
                continue
            path = self.sandbox.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (1_750_000_000, 1_750_000_000))
        self.sandbox.write_stream(setup.stream, **setup.attributes)
        if setup.published:
            code, output = self.run(f"batch-pipeline run {setup.stream}")
            assert code == 0, output

    def at_release_0_1_0(self, url: str) -> "ExampleProject":
        """Return the project with an inventory of release 0.1.0, in an empty database."""
        restore_database(url)
        return replace(self, sandbox=self.sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=url))

    def change(self, stream: str, attributes: Mapping[str, Any]) -> None:
        """Set keys of a stream file; keys of a section are merged."""
        path = self.sandbox.streams / stream / "defs.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key, value in yaml.safe_load(self._to_sandbox(yaml.safe_dump(attributes))).items():
            known = document["attributes"].get(key)
            both = isinstance(value, dict) and isinstance(known, dict)
            document["attributes"][key] = {**known, **value} if both else value
        path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def run(self, command: str) -> tuple[int, str]:
        """Run a command and return its exit code and its output.

        Commands of the product run in this process, because starting another one is slow.
        """
        program, *words = shlex.split(self._to_sandbox(command), comments=True)
        if program != "batch-pipeline":
            return self.run_in_shell(self._to_sandbox(command))
        here = self.sandbox.in_process()
        result = here.run(*words, cwd=Path.cwd(), stderr=subprocess.STDOUT)
        return result.returncode, self._to_page(result.stdout)

    def run_in_shell(self, command: str) -> tuple[int, str]:
        """Run a command in a shell, in the folder of the project."""
        bin_folder = str(Path(sys.executable).parent)
        environment = self.sandbox.environment
        environment["PATH"] = os.pathsep.join([bin_folder, environment["PATH"]])
        result = run_program(
            *("/bin/bash", "-c", command),
            cwd=self.sandbox.folder,
            env=environment,
            capture_output=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return result.returncode, self._to_page(result.stdout)

    def _to_sandbox(self, text: str) -> str:
        for name, text_here in self.replacements.items():
            text = text.replace(name, text_here)
        return text

    def _to_page(self, text: str) -> str:
        for name, text_here in self.replacements.items():
            text = text.replace(text_here, name)
        return text
