"""The checker finds faults: those of a naive protocol, and each kind of damage."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from batch_pipeline_tests.guarantees.checker import Kind, Verdict, Warehouse, check
from batch_pipeline_tests.guarantees.crashes import naive
from batch_pipeline_tests.guarantees.crashes.fork_server import ForkServer
from batch_pipeline_tests.proofs import Figures

TABLE = Warehouse(stream="orders", table=("public", "orders"))
REOPEN = """
UPDATE batch_pipeline.attempt
   SET status = 'running', finished_at = NULL, generation = NULL, publish_number = NULL WHERE id = 1
"""
_ITEM = "INSERT INTO batch_pipeline.item VALUES ('orders', %s, %s, 0, now())"


@dataclass(slots=True, kw_only=True)
class NaivePipeline:
    """An inventory without constraints, its files, and a server that forks processes."""

    url: str
    folder: Path
    processes: ForkServer
    landed: int = 0

    def execute(self, *statements: str) -> None:
        """Change the inventory."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def land(self, count: int) -> None:
        """Land and register files of three records."""
        (self.folder / "landing").mkdir(exist_ok=True)
        with psycopg.connect(self.url, autocommit=True) as connection:
            for number in range(self.landed + 1, self.landed + count + 1):
                path = self.folder / "landing" / f"{number}.csv"
                ids = (str(number * 3 + one) for one in range(3))
                path.write_text("\n".join(["id", *ids]))
                connection.execute(_ITEM, [number, str(path)])
        self.landed += count

    def work(self, *plans: str, encodes: str = "") -> int:
        """Run processes that plan and one that encodes; return how many were killed."""
        planners = [self.processes.fork("plan", failpoints=one, url=self.url) for one in plans]
        killed = sum(self.processes.exit_code(one) == -9 for one in planners)
        where = {"url": self.url, "folder": str(self.storage)}
        encoder = self.processes.fork("encode", failpoints=encodes, **where)
        killed += self.processes.exit_code(encoder) == -9
        self.processes.run("end", url=self.url)
        return killed

    @property
    def storage(self) -> Path:
        """The storage root."""
        return self.folder / "batches"

    def check(self, *warehouses: Warehouse) -> Verdict:
        """Check what there is."""
        return check(self.url, [self.storage], warehouses=warehouses)


@pytest.fixture
def protocol(database_url: str, tmp_path: Path) -> Iterator[NaivePipeline]:
    """The naive protocol at work."""
    with closing(ForkServer(naive.__name__, tmp_path / "actions", {})) as processes:
        opened = NaivePipeline(url=database_url, folder=tmp_path, processes=processes)
        opened.execute(*naive.UNFENCED)
        yield opened


@pytest.mark.guarantee("G3")
def test_naive_protocol_is_found_to_lose_and_to_repeat(
    protocol: NaivePipeline, figures: Figures, long_form: bool
) -> None:
    """The checker must detect the faults of a protocol without fencing."""
    chance, kills = random.Random(8), 0  # noqa: S311 - the same kills each time
    while kills < (500 if long_form else 20):
        protocol.land(2)
        plan, encode = (chance.choice(naive.POINTS) for _ in range(2))
        kills += protocol.work(f"{plan}=kill", encodes=f"{encode}=kill")
    protocol.land(2)
    protocol.work(*["naive.marked=sleep:0.05"] * 2)
    verdict = protocol.check()
    found = {kind: verdict.count(kind) for kind in (Kind.LOST, Kind.TWICE, Kind.UNREADABLE)}
    figures(naive_kills=kills, **{f"naive_{kind}": count for kind, count in found.items()})
    assert all(found.values()), str(verdict)


@pytest.fixture
def clean(protocol: NaivePipeline) -> NaivePipeline:
    """Three files in three batches, and a table with their records, without kills."""
    protocol.land(3)
    protocol.work("")
    protocol.execute("CREATE TABLE public.orders AS SELECT generate_series(3, 11) AS id")
    verdict = protocol.check(TABLE)
    assert (verdict.items, verdict.records, verdict.files) == (3, 9, 6)
    assert (verdict.garbage, verdict.faults) == (0, ())
    return protocol


@pytest.mark.parametrize(
    ("statement", "kind", "count"),
    [
        ("DELETE FROM public.orders WHERE id = 7", Kind.TARGET_LOST, 1),
        ("INSERT INTO public.orders VALUES (7), (8)", Kind.TARGET_TWICE, 2),
        ("INSERT INTO batch_pipeline.attempt_item VALUES (2, 1, 0, 0, 0, 0)", Kind.TWICE, 1),
        ("INSERT INTO batch_pipeline.item VALUES ('orders', 4, '/no', 0, now())", Kind.LOST, 2),
        ("UPDATE batch_pipeline.part_file SET sha256 = ''", Kind.UNREADABLE, 3),
        ("UPDATE batch_pipeline.part_file SET size_bytes = 1", Kind.UNREADABLE, 3),
        ("UPDATE batch_pipeline.part_file SET records = 2", Kind.UNREADABLE, 3),
        ("UPDATE batch_pipeline.attempt SET token = gen_random_uuid()", Kind.POINTER, 3),
        ("UPDATE batch_pipeline.attempt SET pointer_uri = NULL WHERE id = 1", Kind.POINTER, 2),
        (REOPEN, Kind.OPEN, 1),
    ],
    ids=lambda value: value if isinstance(value, Kind) else None,
)
def test_row_that_is_wrong_is_found(
    clean: NaivePipeline, statement: str, kind: Kind, count: int
) -> None:
    clean.execute(statement)
    verdict = clean.check(TABLE)
    assert verdict.count(kind) == count, str(verdict)


def test_file_that_is_wrong_is_found(clean: NaivePipeline) -> None:
    """A truncated file and unknown files are faults; a leftover temporary file is garbage."""
    part = next(clean.storage.glob("1-1/*.gz"))
    part.write_bytes(part.read_bytes()[:-1])
    for name in ("stray.jsonl.gz", "manifests/stray.json", "manifests/.stray.json-1.tmp"):
        (clean.storage / name).write_text("")
    verdict = clean.check(TABLE)
    assert [verdict.count(one) for one in (Kind.UNREADABLE, Kind.ORPHAN, Kind.POINTER)] == [1, 1, 1]
    assert verdict.garbage == 1
    assert f"nothing names {clean.storage}/stray.jsonl.gz" in str(verdict)
