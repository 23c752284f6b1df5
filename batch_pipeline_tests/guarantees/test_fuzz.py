"""Bad bytes are refused: no crash, no hang, no silent change, whatever reads them.

The harness is in `fuzz`; the short form always takes the same inputs, the long form tells its seed.
"""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.schema import Column
from batch_pipeline.domain.target import PostgresTarget
from batch_pipeline.postgres.cells import arrow_type_of
from batch_pipeline_tests.guarantees.fuzz.harness import misbehaving
from batch_pipeline_tests.guarantees.fuzz.harness.notes import Share, Task
from batch_pipeline_tests.guarantees.fuzz.harness.targets import drawn
from batch_pipeline_tests.guarantees.fuzz.harness.watch import watch
from batch_pipeline_tests.guarantees.fuzz.plan import TARGETS
from batch_pipeline_tests.integration.test_postgres_values import TYPED
from batch_pipeline_tests.integration.warehouse import ID, Warehouse, schema_of, written_table
from batch_pipeline_tests.proofs import Figures

PARQUET = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
MEMORY = Path("/dev/shm")  # noqa: S108 - what inputs become is nobody's
MOST_BYTES = 512 * 2**20
HANG_SECONDS = 30.0
KINDS = ("crash", "hang", "changed", "exception", "memory")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is such a thing."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="bp-") as folder:
        yield Path(folder)


def tasks(
    folder: Path, scratch: Path, shares: Sequence[Share], *, number: int, workers: int
) -> list[Task]:
    """Deal the inputs out to children, one by one."""
    return [
        Task(
            seed=number,
            shares=tuple(
                Share(target=one.target, first=worker, stop=one.stop, step=workers)
                for one in shares
            ),
            folder=str(folder / f"child {worker}"),
            scratch=str(scratch),
            most_bytes=MOST_BYTES,
        )
        for worker in range(workers)
    ]


@pytest.mark.guarantee("S4")
def test_bad_bytes_are_read_as_oracles_read_them_or_refused(
    tmp_path: Path, scratch: Path, figures: Figures, long_form: bool
) -> None:
    """Nothing but a domain error comes back, and what is written is what other libraries read."""
    number = secrets.randbits(20) if long_form else 1
    shares = [
        Share(target=name, first=0, stop=target.long if long_form else target.short)
        for name, target in TARGETS.items()
    ]
    workers = 2 if long_form else 1
    result = watch(
        tasks(tmp_path, scratch, shares, number=number, workers=workers), hang_seconds=HANG_SECONDS
    )

    assert not result.finds, f"seed {number}\n{result.told()}"
    inputs = {f"{name} inputs": result.inputs(name) for name in TARGETS}
    figures(
        inputs=sum(inputs.values()),
        read=result.read.total(),
        refused=result.refused.total(),
        **{f"{kind} finds": result.count(kind) for kind in KINDS},
        **inputs,
    )
    if long_form:
        figures(seed=number, slowest_seconds=max(slow for slow, _ in result.slowest.values()))
    assert inputs == {f"{share.target} inputs": share.stop for share in shares}


def test_inputs_that_do_what_none_may_are_named_and_kept(tmp_path: Path) -> None:
    """The harness outlives a crash, an endless loop, an exception, a change and a great hunger."""
    task = Task(
        seed=1,
        shares=tuple(Share(target=word, first=0, stop=1) for word in misbehaving.WORDS),
        folder=str(tmp_path),
        scratch=str(tmp_path),
        most_bytes=64 * 2**20,
        plan=misbehaving.__name__,
    )
    result = watch([task], hang_seconds=2.0)

    assert {find.kind: find.target for find in result.finds} == {kind: kind for kind in KINDS}
    assert [result.inputs(word) for word in misbehaving.WORDS] == [1] * len(misbehaving.WORDS)
    assert (result.read.total(), result.refused.total()) == (3, 1)
    for find in result.finds:
        assert Path(find.path).read_bytes() == find.target.encode()
        assert "misbehaving.py" in find.told or find.kind == "memory"


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty database, and a target in it."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    return Warehouse(url=empty_database_url, folder=tmp_path, target=target)


@pytest.mark.guarantee("S4")
def test_cells_come_out_of_a_real_server_as_they_went_in(
    warehouse: Warehouse, figures: Figures, long_form: bool
) -> None:
    """Values of all types, at their extremes and anywhere between, through COPY."""
    loads, count = (20, 5_000) if long_form else (1, 200)
    number = secrets.randbits(20) if long_form else 1
    random = Random(number)  # noqa: S311 - to be had again
    cells = 400 if long_form else 60
    pools = {
        kind: drawn(st.none() | values, cells, number + at)
        for at, (kind, values) in enumerate(TYPED.items())
    }
    columns = [Column.from_text(f"c{at}", kind) for at, kind in enumerate(TYPED)]
    schema = schema_of(ID, *((column.name, column.type_text) for column in columns))
    for load in range(loads):
        rows = [tuple(random.choice(pool) for pool in pools.values()) for _ in range(count)]
        arrays: dict[str, Any] = {"id": pa.array(range(count), pa.int64())}
        for at, column in enumerate(columns):
            arrays[column.name] = pa.array([row[at] for row in rows], arrow_type_of(column))
        part = written_table(warehouse.folder / "typed.parquet", pa.table(arrays), PARQUET)
        loading = warehouse.loading(
            schema=schema, part_files=(part,), encoding=PARQUET, first_id=1 + load * 10
        )
        warehouse.load(loading)
        found = warehouse.rows("id", *(column.name for column in columns))
        assert [row[1:] for row in found] == rows, f"seed {number}"
        warehouse.execute("TRUNCATE orders")
    figures(cells_through_copy=loads * count * len(columns), changed_cells=0)
