"""Malformed input is refused by every reader: no crash, no hang, no silent change.

The harness is in `fuzz`. The short form always has the same inputs. The long form chooses a seed
and reports it. `--hypothesis-seed` sets the seed of both.
"""

import secrets
import subprocess
import sys
from datetime import UTC
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from batch_pipeline.load.types import arrow_type_of
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.schema import Column
from batch_pipeline_tests.guarantees.fuzz import harness, misbehaving
from batch_pipeline_tests.guarantees.fuzz.harness import Task, drawn, watch
from batch_pipeline_tests.guarantees.fuzz.targets import TARGETS
from batch_pipeline_tests.load.warehouse import APPEND, ID, Warehouse, schema_of, written_table
from batch_pipeline_tests.proofs import Figures

PARQUET = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
MAX_BYTES = 512 * 2**20
HANG_SECONDS = 30.0
KINDS = ("crash", "hang", "changed", "exception", "memory")
# Values of each column type that round-trip exactly.
TYPED: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "decimal(38,19)": st.decimals(-(10**18), 10**18, places=19),
    "decimal(7,7)": st.decimals("-0.9999999", "0.9999999", places=7),
    "decimal(9,0)": st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    "number": st.floats(allow_nan=False),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    "binary": st.binary(),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "local_timestamp": st.datetimes(),
}


@pytest.fixture
def seed(request: pytest.FixtureRequest, long_form: bool) -> int:
    """The seed of the command line, otherwise 1, or a random one in the long form."""
    seed_option: str | None = request.config.getoption("--hypothesis-seed")
    if seed_option is not None:
        return int(seed_option)
    return secrets.randbits(20) if long_form else 1


@pytest.mark.guarantee("S4")
def test_malformed_input_is_refused_or_read_like_the_oracles(
    tmp_path: Path, figures: Figures, long_form: bool, seed: int
) -> None:
    """The product raises domain errors only, and writes what other libraries read."""
    numbers = {name: target.long if long_form else target.short for name, target in TARGETS.items()}
    workers = 2 if long_form else 1
    tasks = [
        Task(
            seed=f"{seed} {worker}",
            shares=[(name, range((n + worker) // workers)) for name, n in numbers.items()],
            folder=tmp_path / f"child {worker}",
            max_bytes=MAX_BYTES,
        )
        for worker in range(workers)
    ]
    result = watch(tasks, hang_seconds=HANG_SECONDS)

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


def test_harness_reports_and_stores_misbehaving_inputs_and_continues(tmp_path: Path) -> None:
    """The harness survives a crash, an endless loop, an exception and a large allocation."""
    task = Task(
        seed="1",
        shares=[*((word, range(1)) for word in misbehaving.WORDS), ("sometimes", range(30))],
        folder=tmp_path,
        max_bytes=64 * 2**20,
        targets=misbehaving.__name__,
    )
    result = watch([task], hang_seconds=2.0)

    inputs = list(islice(misbehaving.TARGETS["sometimes"].inputs("1"), 30))
    crashes = [number for number, data in enumerate(inputs) if data == b"crash"]
    assert 1 < len(crashes) < 30
    found = [(finding.kind, finding.target, finding.number) for finding in result.findings]
    assert sorted(found) == sorted(
        [*((kind, kind, 0) for kind in KINDS), *(("crash", "sometimes", n) for n in crashes)]
    )
    assert [result.inputs(word) for word in misbehaving.WORDS] == [1] * len(misbehaving.WORDS)
    assert result.inputs("sometimes") == 30
    assert (result.read.total(), result.refused.total()) == (33 - len(crashes), 1)
    for finding in result.findings:
        assert Path(finding.path).read_bytes() == finding.kind.encode()
        assert "misbehaving.py" in finding.trace or finding.kind == "memory"


@pytest.mark.long
def test_same_seed_produces_same_inputs() -> None:
    for name in ("keys", "filters", "csv", "avro"):
        first, again, other = (
            list(islice(TARGETS[name].inputs(seed), 150)) for seed in ("1", "1", "2")
        )
        assert first == again != other


@pytest.mark.long
def test_stored_input_can_be_run_again(tmp_path: Path) -> None:
    file = tmp_path / "stored"
    file.write_bytes(b"00000001-00000060")
    command = [sys.executable, "-m", harness.__name__, "keys", str(file)]

    assert subprocess.check_output(command, text=True) == "read\n"


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty database with a target."""
    return Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)


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
