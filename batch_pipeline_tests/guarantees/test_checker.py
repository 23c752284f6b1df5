"""Tests of the checker: it detects the faults of a naive pipeline and each kind of damage."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from batch_pipeline_tests.guarantees.checker import CheckResult, Kind, TargetTable, check
from batch_pipeline_tests.guarantees.crashes import naive
from batch_pipeline_tests.guarantees.crashes.fork_server import ForkServer
from batch_pipeline_tests.proofs import Figures

TARGET = TargetTable(stream="orders", table=("public", "orders"))
REOPEN = """
UPDATE batch_pipeline.attempt
   SET status = 'running', finished_at = NULL, generation = NULL, publish_number = NULL WHERE id = 1
"""
NO_MANIFEST_FILE = "UPDATE batch_pipeline.attempt SET pointer_uri = NULL WHERE id = 1"
_ITEM = "INSERT INTO batch_pipeline.item VALUES ('orders', %s, %s, 0, now())"


@dataclass(slots=True, kw_only=True)
class NaivePipeline:
    """The naive protocol: an inventory without constraints, its files and its processes."""

    url: str
    folder: Path
    processes: ForkServer
    landed: int = 0

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def land(self, count: int) -> None:
        """Land and register some files of three records."""
        (self.folder / "landing").mkdir(exist_ok=True)
        with psycopg.connect(self.url, autocommit=True) as connection:
            for number in range(self.landed + 1, self.landed + count + 1):
                path = self.folder / "landing" / f"{number}.csv"
                ids = (str(number * 3 + offset) for offset in range(3))
                path.write_text("\n".join(["id", *ids]))
                connection.execute(_ITEM, [number, str(path)])
        self.landed += count

    def run(self, *planner_failpoints: str, encoder_failpoints: str = "") -> int:
        """Run planners, then one encoder, and return the number of killed processes."""
        planners = [
            self.processes.fork("plan", failpoints=failpoints, url=self.url)
            for failpoints in planner_failpoints
        ]
        killed = sum(self.processes.exit_code(planner) == -9 for planner in planners)
        arguments = {"url": self.url, "folder": str(self.storage)}
        encoder = self.processes.fork("encode", failpoints=encoder_failpoints, **arguments)
        killed += self.processes.exit_code(encoder) == -9
        self.processes.run("end", url=self.url)
        return killed

    @property
    def storage(self) -> Path:
        return self.folder / "batches"

    def check(self, *targets: TargetTable) -> CheckResult:
        """Check the inventory, the storage and the targets."""
        return check(self.url, [self.storage], targets=targets)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The processes of the naive protocol."""
    with closing(ForkServer(naive.__name__, tmp_path_factory.mktemp("actions"), {})) as processes:
        yield processes


@pytest.fixture
def pipeline(processes: ForkServer, database_url: str, tmp_path: Path) -> NaivePipeline:
    """The naive protocol on a fresh inventory."""
    pipeline = NaivePipeline(url=database_url, folder=tmp_path, processes=processes)
    pipeline.execute(*naive.UNFENCED)
    return pipeline


@pytest.mark.guarantee("G3")
def test_checker_detects_lost_and_duplicate_records_of_naive_protocol(
    pipeline: NaivePipeline, figures: Figures, long_form: bool
) -> None:
    rng, kills = random.Random(8), 0  # noqa: S311 - the same kills each time
    while kills < (500 if long_form else 20):
        pipeline.land(2)
        plan, encode = (rng.choice(naive.POINTS) for _ in range(2))
        kills += pipeline.run(f"{plan}=kill", encoder_failpoints=f"{encode}=kill")
    pipeline.land(2)
    pipeline.run(*["naive.marked=sleep:0.05"] * 2)
    result = pipeline.check()
    found = {kind: result.count(kind) for kind in (Kind.LOST, Kind.TWICE, Kind.UNREADABLE)}
    figures(naive_kills=kills, **{f"naive_{kind}": count for kind, count in found.items()})
    assert all(found.values()), str(result)


@pytest.fixture
def clean(pipeline: NaivePipeline) -> NaivePipeline:
    """Three published batches of one file each, and a target table with their records."""
    pipeline.land(3)
    pipeline.run("")
    pipeline.execute("CREATE TABLE public.orders AS SELECT generate_series(3, 11) AS id")
    result = pipeline.check(TARGET)
    assert (result.items, result.records, result.files) == (3, 9, 6)
    assert (result.garbage, result.faults) == (0, ())
    return pipeline


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
        ("UPDATE batch_pipeline.attempt SET token = gen_random_uuid()", Kind.MANIFEST_FILE, 3),
        (NO_MANIFEST_FILE, Kind.MANIFEST_FILE, 2),
        (REOPEN, Kind.OPEN, 1),
    ],
    ids=lambda value: value if isinstance(value, Kind) else None,
)
def test_checker_detects_wrong_row(
    clean: NaivePipeline, statement: str, kind: Kind, count: int
) -> None:
    clean.execute(statement)
    result = clean.check(TARGET)
    assert result.count(kind) == count, str(result)


def test_checker_detects_wrong_file(clean: NaivePipeline) -> None:
    """Truncated and unreferenced files are faults. A leftover temporary file is garbage."""
    part = next(clean.storage.glob("1-1/*.gz"))
    part.write_bytes(part.read_bytes()[:-1])
    for name in ("stray.jsonl.gz", "manifests/stray.json", "manifests/.stray.json-1.tmp"):
        (clean.storage / name).write_text("")
    result = clean.check(TARGET)
    kinds = (Kind.UNREADABLE, Kind.ORPHAN, Kind.MANIFEST_FILE)
    assert [result.count(kind) for kind in kinds] == [1, 1, 1]
    assert result.garbage == 1
    assert f"unreferenced file {clean.storage}/stray.jsonl.gz" in str(result)
