"""No pickles are written between Dagster steps, and none in parquet files are loaded."""

import pickle
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from batch_pipeline.defs.names import register_job
from batch_pipeline.encode.readers.parquet import read_chunks
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.encode.landed_files import STREAM, in_memory, parquet
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")


class _CreatesFile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._path,)


@pytest.mark.filterwarnings("ignore:pickle-based deserialization")
def test_pickled_extension_type_in_parquet_file_is_not_loaded(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    kind = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_CreatesFile(sentinel)),
    }
    schema = pa.schema([pa.field("a", pa.int64(), metadata=kind)])
    data = parquet(pa.table([[1, 2]], schema=schema))
    with suppress(BadFileError):
        chunks = read_chunks(in_memory(data), STREAM)
        assert sum(len(chunk.record_numbers) for chunk in chunks) == 2
    assert not sentinel.exists()
    pickle.loads(kind[b"ARROW:extension:metadata"])  # noqa: S301 - proves that loading has an effect
    assert sentinel.exists()


def _outputs_for_io_manager(job: dg.JobDefinition) -> set[str]:
    """Return the outputs of a job that an IO manager receives if the step yields them."""
    return {
        f"{node.name}.{output.name}"
        for node in job.graph.node_defs
        for output in node.output_defs
        if output.is_required and not output.dagster_type.is_nothing
    }


def test_steps_pass_nothing_to_io_manager(project: DefsHarness, figures: Figures) -> None:
    """Only the step that registers files declares an output, and it yields none."""
    jobs = list(project.definitions.resolve_all_job_defs())
    outputs = set[str]().union(*map(_outputs_for_io_manager, jobs))
    checks = {name for name in outputs if "_checks." in name}  # Dagster stores no values of checks
    assert outputs - checks == {"orders__files.result"}
    job = project.definitions.resolve_job_def(register_job(project.stream))
    result = job.execute_in_process(instance=project.instance)
    kinds = [event.event_type for event in result.all_events]
    assert dg.DagsterEventType.ASSET_MATERIALIZATION in kinds
    assert dg.DagsterEventType.HANDLED_OUTPUT not in kinds
    figures(jobs_without_pickles=len(jobs))


def test_step_that_returns_value_is_detected(tmp_path: Path) -> None:
    @dg.asset
    def asset() -> int:
        return 1

    definitions = dg.Definitions(assets=[asset], jobs=[dg.define_asset_job("job", [asset])])
    job = definitions.resolve_job_def("job")
    assert _outputs_for_io_manager(job) == {"asset.result"}
    kinds = [event.event_type for event in job.execute_in_process().all_events]
    assert dg.DagsterEventType.HANDLED_OUTPUT in kinds
