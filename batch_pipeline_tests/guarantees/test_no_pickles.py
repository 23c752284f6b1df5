"""What files and pages of Dagster hand to each other is data: no pickle is made, none is opened."""

import io
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.defs.names import register_job
from batch_pipeline.encode.readers.parquet import ParquetReader
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.encode.landed_files import STREAM, in_memory
from batch_pipeline_tests.proofs import Figures

pytestmark = [
    pytest.mark.guarantee("S1"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


class _Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._path,)


@pytest.mark.filterwarnings("ignore:pickle-based deserialization")
def test_types_of_parquet_files_that_are_pickles_are_not_opened(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    kind = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Touches(sentinel)),
    }
    schema = pa.schema([pa.field("a", pa.int64(), metadata=kind)])
    sink = io.BytesIO()
    pq.write_table(pa.table([[1, 2]], schema=schema), sink)
    with suppress(BadFileError):
        chunks = ParquetReader(in_memory(sink.getvalue()), STREAM).chunks()
        assert sum(len(chunk.record_numbers) for chunk in chunks) == 2
    assert not sentinel.exists()
    pickle.loads(kind[b"ARROW:extension:metadata"])  # noqa: S301 - what would have happened
    assert sentinel.exists()


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The definitions of the stream `orders`."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened


def _may_be_pickled(job: dg.JobDefinition) -> set[str]:
    """Name the outputs of a job that an IO manager would be given, unless the step yields none."""
    return {
        f"{node.name}.{output.name}"
        for node in job.graph.node_defs
        for output in node.output_defs
        if output.is_required and not output.dagster_type.is_nothing
    }


def test_steps_hand_nothing_to_an_io_manager(scene: DefsScene, figures: Figures) -> None:
    """Only the step that registers files has an output, and it yields none."""
    jobs = list(scene.definitions.resolve_all_job_defs())
    found = set[str]().union(*map(_may_be_pickled, jobs))
    checks = {name for name in found if "_checks." in name}  # Dagster keeps no values of checks
    assert found - checks == {"orders__files.result"}
    job = scene.definitions.resolve_job_def(register_job(scene.stream))
    result = job.execute_in_process(instance=scene.instance)
    kinds = [event.event_type for event in result.all_events]
    assert dg.DagsterEventType.ASSET_MATERIALIZATION in kinds
    assert dg.DagsterEventType.HANDLED_OUTPUT not in kinds
    figures(jobs_without_pickles=len(jobs))


def test_guard_of_io_managers_sees_a_step_that_gives_a_value(tmp_path: Path) -> None:
    @dg.asset
    def given() -> int:
        return 1

    definitions = dg.Definitions(assets=[given], jobs=[dg.define_asset_job("made", [given])])
    job = definitions.resolve_job_def("made")
    assert _may_be_pickled(job) == {"given.result"}
    kinds = [event.event_type for event in job.execute_in_process().all_events]
    assert dg.DagsterEventType.HANDLED_OUTPUT in kinds
