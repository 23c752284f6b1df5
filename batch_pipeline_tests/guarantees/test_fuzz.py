"""Malformed input is refused by every reader: no crash, no hang, no silent change.

The harness is in `fuzz`. The short form always has the same inputs. The long form chooses a seed
and reports it. `--hypothesis-seed` sets the seed of both.
"""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from batch_pipeline.load.types import arrow_type_of
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.load import PostgresTarget
from batch_pipeline.model.schema import Column
from batch_pipeline_tests.guarantees.fuzz import misbehaving
from batch_pipeline_tests.guarantees.fuzz.harness import CHILD, Share, Target, Task, drawn, watch
from batch_pipeline_tests.guarantees.fuzz.targets import TARGETS
from batch_pipeline_tests.load.warehouse import ID, TYPED, Warehouse, schema_of, written_table
from batch_pipeline_tests.proofs import Figures

PARQUET = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
MEMORY = Path("/dev/shm")  # noqa: S108 - the folders in it have random names
MAX_BYTES = 512 * 2**20
HANG_SECONDS = 30.0
KINDS = ("crash", "hang", "changed", "exception", "memory")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if possible."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="bp-") as folder:
        yield Path(folder)


@pytest.fixture
def seed(request: pytest.FixtureRequest, long_form: bool) -> int:
    """The seed of the command line, otherwise 1, or a random one in the long form."""
    seed_option: str | None = request.config.getoption("--hypothesis-seed")
    if seed_option is not None:
        return int(seed_option)
    return secrets.randbits(20) if long_form else 1


def tasks(
    folder: Path, scratch: Path, numbers: dict[str, int], *, seed: int, workers: int
) -> list[Task]:
    """Divide the inputs of each target among children, each with its own seed."""
    return [
        Task(
            seed=f"{seed} {worker}",
            shares=tuple(
                Share(target=name, first=0, stop=(number + worker) // workers)
                for name, number in numbers.items()
            ),
            folder=str(folder / f"child {worker}"),
            scratch=str(scratch),
            max_bytes=MAX_BYTES,
        )
        for worker in range(workers)
    ]


@pytest.mark.guarantee("S4")
def test_malformed_input_is_refused_or_read_like_the_oracles(
    tmp_path: Path, scratch: Path, figures: Figures, long_form: bool, seed: int
) -> None:
    """The product raises domain errors only, and writes what other libraries read."""
    numbers = {name: target.long if long_form else target.short for name, target in TARGETS.items()}
    workers = 2 if long_form else 1
    result = watch(
        tasks(tmp_path, scratch, numbers, seed=seed, workers=workers), hang_seconds=HANG_SECONDS
    )

    assert not result.findings, f"seed {seed}\n{result.report()}"
    figures(
        inputs=sum(numbers.values()),
        read=result.read.total(),
        refused=result.refused.total(),
        **{f"{kind} findings": result.count(kind) for kind in KINDS},
        **{f"{name} inputs": result.inputs(name) for name in numbers},
    )
    if long_form:
        figures(seed=seed, slowest_seconds=result.slowest_seconds)
    assert {name: result.inputs(name) for name in numbers} == numbers


def misbehaving_task(folder: Path, *words: str) -> Task:
    """Return a task with one input for each of some misbehaving targets."""
    return Task(
        seed="1",
        shares=tuple(Share(target=word, first=0, stop=1) for word in words),
        folder=str(folder),
        scratch=str(folder),
        max_bytes=64 * 2**20,
        targets=misbehaving.__name__,
    )


def test_harness_reports_and_stores_misbehaving_inputs(tmp_path: Path) -> None:
    """The harness survives a crash, an endless loop, an exception and a large allocation."""
    result = watch([misbehaving_task(tmp_path, *misbehaving.WORDS)], hang_seconds=2.0)

    assert {finding.kind: finding.target for finding in result.findings} == {
        kind: kind for kind in KINDS
    }
    assert [result.inputs(word) for word in misbehaving.WORDS] == [1] * len(misbehaving.WORDS)
    assert (result.read.total(), result.refused.total()) == (3, 1)
    for finding in result.findings:
        assert Path(finding.path).read_bytes() == finding.target.encode()
        assert "misbehaving.py" in finding.trace or finding.kind == "memory"


def test_harness_continues_after_each_crash_with_same_inputs(tmp_path: Path) -> None:
    task = misbehaving_task(tmp_path, "sometimes")
    [share] = task.shares
    result = watch([replace(task, shares=(replace(share, stop=30),))], hang_seconds=2.0)

    inputs = list(islice(misbehaving.TARGETS["sometimes"].inputs("1"), 30))
    crashes = {number: data for number, data in enumerate(inputs) if data == b"crash"}
    assert 1 < len(crashes) < 30
    assert {each.number: Path(each.path).read_bytes() for each in result.findings} == crashes
    assert result.inputs("sometimes") == 30


def test_same_seed_produces_same_inputs() -> None:
    def some(target: Target, seed: str) -> list[bytes]:
        return list(islice(target.inputs(seed), 150))

    for name in ("keys", "filters", "csv", "avro"):
        target = TARGETS[name]
        assert some(target, "1") == some(target, "1")
        assert some(target, "1") != some(target, "2")


def test_stored_input_can_be_run_again(tmp_path: Path) -> None:
    file = tmp_path / "stored"
    file.write_bytes(b"00000001-00000060")
    command = [sys.executable, "-m", CHILD, "keys", str(file)]

    assert subprocess.check_output(command, text=True) == "read\n"


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty database with a target."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    return Warehouse(url=empty_database_url, folder=tmp_path, target=target)


@pytest.mark.guarantee("S4")
def test_values_survive_copy_into_real_server(
    warehouse: Warehouse, figures: Figures, long_form: bool, seed: int
) -> None:
    """Values of all types, including extremes, are loaded with COPY."""
    loads, count = (20, 5_000) if long_form else (1, 200)
    cells = 400 if long_form else 60
    # The pools have different sizes, so that each row has another combination of values.
    pools = [
        drawn(st.none() | values, cells + position, f"{seed} {kind}")
        for position, (kind, values) in enumerate(TYPED.items())
    ]
    columns = [Column.from_text(f"c{position}", kind) for position, kind in enumerate(TYPED)]
    schema = schema_of(ID, *((column.name, column.type_text) for column in columns))
    for load in range(loads):
        numbers = range(load * count, (load + 1) * count)
        rows = [tuple(pool[number % len(pool)] for pool in pools) for number in numbers]
        arrays: dict[str, Any] = {"id": pa.array(range(count), pa.int64())}
        for position, column in enumerate(columns):
            arrays[column.name] = pa.array([row[position] for row in rows], arrow_type_of(column))
        part = written_table(warehouse.folder / "typed.parquet", pa.table(arrays), PARQUET)
        loading = warehouse.loading(
            schema=schema, part_files=(part,), encoding=PARQUET, first_id=1 + load * 10
        )
        warehouse.load(loading)
        found = warehouse.rows("id", *(column.name for column in columns))
        assert [row[1:] for row in found] == rows, f"seed {seed}"
        warehouse.execute("TRUNCATE orders")
    figures(cells_through_copy=loads * count * len(columns), changed_cells=0)
