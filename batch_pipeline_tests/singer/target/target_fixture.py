"""A home for the Singer target with a real inventory, and access to landed files."""

import gzip
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.factories import environment_of
from batch_pipeline_tests.singer.tap.tap_fixture import signals_restored

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
KEYS = ["id"]


def schema(stream: str = "orders", **overrides: Any) -> dict[str, Any]:
    """Return a SCHEMA message with the columns id and name."""
    message = {"type": "SCHEMA", "stream": stream, "schema": SCHEMA, "key_properties": KEYS}
    return message | overrides


def record(number: int, stream: str = "orders", **overrides: Any) -> dict[str, Any]:
    """Return a RECORD message with an id and a name."""
    message = {"type": "RECORD", "stream": stream, "record": {"id": number, "name": f"n{number}"}}
    return message | overrides


def state(number: int) -> dict[str, Any]:
    """Return a STATE message identified by a number."""
    return {"type": "STATE", "value": {"at": number}}


def batch(*uris: str, stream: str = "orders", **overrides: Any) -> dict[str, Any]:
    """Return a BATCH message of gzipped JSON lines."""
    encoding = {"format": "jsonl", "compression": "gzip"}
    message = {"type": "BATCH", "stream": stream, "encoding": encoding, "manifest": list(uris)}
    return message | overrides


def packed(*numbers: int) -> bytes:
    """Return a gzipped file of records."""
    text = "".join(json.dumps(record(number)["record"]) + "\n" for number in numbers)
    return gzip.compress(text.encode(), mtime=0)


def batch_file(path: Path, *numbers: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(*numbers))
    return path


@dataclass(frozen=True, kw_only=True)
class TargetHome:
    """A home and a streams folder in `root`, with the inventory at `database_url`.

    Files of BATCH messages are read in `root`, unless the config specifies otherwise.
    """

    root: Path
    database_url: str
    config: dict[str, Any] = field(default_factory=dict)
    target_class: type[TargetBatchPipeline] = TargetBatchPipeline

    @property
    def environment(self) -> dict[str, str]:
        return environment_of(self.root, self.database_url)

    def run(self, *messages: dict[str, Any] | bytes, **config: Any) -> list[Any]:
        """Send messages to the target and return the printed STATEs."""
        printed, error = self._listen(messages, config)
        if error is not None:
            raise error
        return printed

    def run_until_error(
        self, *messages: dict[str, Any] | bytes, **config: Any
    ) -> tuple[list[Any], Exception]:
        """Send messages until the target raises; return the printed STATEs and the error."""
        printed, error = self._listen(messages, config)
        assert error is not None
        return printed, error

    def assert_error(
        self, kind: type[Exception], text: str, *messages: dict[str, Any] | bytes, **config: Any
    ) -> list[Any]:
        """Check the error for these messages and return the printed STATEs."""
        printed, error = self.run_until_error(*messages, **config)
        assert isinstance(error, kind)
        assert text in str(error)
        return printed

    def write_stream_file(
        self, source: str, *, name: str = "orders", stream: str = "orders"
    ) -> Path:
        """Write a stream file and return its folder."""
        folder = self.root / "streams" / name
        folder.mkdir(parents=True)
        (folder / "defs.yaml").write_text(
            f"type: batch_pipeline.BatchStream\nattributes:\n  stream: {stream}\n"
            f"  source: {source}\n  storage: {{root: ./out}}\n"
        )
        return folder

    def _listen(
        self, messages: tuple[dict[str, Any] | bytes, ...], config: dict[str, Any]
    ) -> tuple[list[Any], Exception | None]:
        lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
        # STATEs are UTF-8 in any locale.
        printed, raised = io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), None
        with signals_restored(), redirect_stdout(printed):
            given = {"batch_roots": [str(self.root)], **self.config, **config}
            target = self.target_class(config=given)
            try:
                target.listen(io.BytesIO(b"\n".join(lines)))  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - returned for the test to check
                raised = error
        states = printed.buffer.getvalue().decode().splitlines()
        return [json.loads(line, parse_float=Decimal) for line in states], raised

    def files(self, stream: str = "orders") -> list[Path]:
        """Return the registered files in the order of their ids; all of them exist."""
        query = "SELECT location FROM batch_pipeline.item WHERE stream = %s ORDER BY id"
        with psycopg.connect(self.database_url) as connection:
            rows = connection.execute(query, (stream,)).fetchall()
        paths = [Path(to_path(row[0])) for row in rows]
        assert all(path.is_file() for path in paths)
        return paths

    def records(self, stream: str = "orders") -> list[dict[str, Any]]:
        """Return all registered records in the order of their items."""
        return [one for path in self.files(stream) for one in read(path)]

    def ids(self, stream: str = "orders") -> list[int]:
        return [one["id"] for one in self.records(stream)]

    def landed(self) -> list[str]:
        """Return the names of all files in the landing folder, including hidden ones."""
        landing = self.root / "home" / "landing"
        return sorted(path.name for path in landing.rglob("*") if path.is_file())


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    return [json.loads(line) for line in text.splitlines()]
