"""A planned batch and a scripted encoder, for tests of the encode step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.attempt import EncodeContext, encode
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import encode_result, item_report, limits, part_file, stream
from batch_pipeline_tests.seeds import plan, query, register

Step = dict[str, Any] | BaseException | Callable[[], object]


@dataclass
class ScriptedEncoder:
    """Encoder that writes one part file with five records per item.

    Each call takes the next step of `script`: attributes of the result, an error to raise or a
    function to call, after the file is written.
    """

    root: Path
    script: list[Step] = field(default_factory=list)
    requests: list[EncodeRequest] = field(default_factory=list)
    unavailable: Exception | None = None

    def prepare(self) -> None:
        """Raise the error of an unavailable engine, if there is one."""
        if self.unavailable is not None:
            raise self.unavailable

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Write a part file and follow the next step of the script."""
        self.requests.append(request)
        path = self.root / f"{request.stem}-{len(self.requests)}.jsonl.gz"
        path.write_bytes(b"five records")
        step = self.script.pop(0) if self.script else {}
        if isinstance(step, BaseException):
            raise step
        if callable(step):
            step()
            step = {}
        items = tuple(item_report(item.id, location=item.file.location) for item in request.items)
        part = part_file(uri=to_uri(path), records=5 * len(items), size_bytes=12)
        return encode_result("orders", **({"part_files": (part,), "items": items} | step))


@dataclass
class EncodeHarness:
    """A planned batch of two items and its encode context."""

    database: Database
    root: Path
    encoder: ScriptedEncoder
    context: EncodeContext
    batch: Batch

    def encode(self, **changes: Any) -> Manifest:
        """Encode the batch and return its manifest."""
        return encode(replace(self.context, **changes), self.batch, run_id="run-1").manifest

    def parts(self) -> list[str]:
        """List all part files, including unfinished and quarantined ones."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.name for path in files if path.parent.name != "manifests")

    def pointers(self) -> list[str]:
        """List the manifest files."""
        return sorted(path.name for path in (self.root / "manifests").iterdir())

    def attempts(self) -> list[tuple[Any, ...]]:
        """Return status, error, generation and publish number of all attempts."""
        return query(
            self.database,
            "SELECT status, error, generation, publish_number "
            "FROM batch_pipeline.attempt ORDER BY number",
        )


def open_harness(database: Database, root: Path) -> EncodeHarness:
    """Plan a batch of two items; the stream has no schema version yet."""
    register(database, 2)
    (batch,) = plan(database, limits())
    storage = Storage(root=to_uri(root))
    encoder = ScriptedEncoder(root)
    context = EncodeContext(
        stream=stream(storage=storage),
        meta_table=database.meta_table("orders"),
        schemas=database.schemas,
        attempts=database.attempts,
        encoder=encoder,
        storage=PartFileStorage(storage),
    )
    return EncodeHarness(database, root, encoder, context, batch)
