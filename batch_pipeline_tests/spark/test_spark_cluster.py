"""A standalone cluster: a lost worker, reproducible bytes, incomplete executors.

The tests share a cluster and, where possible, a session, to start few Java processes.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.errors import ConfigurationError, SparkUnavailableError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.attempt import EncodeContext, encode
from batch_pipeline.spark import diagnostics, task_planning
from batch_pipeline.spark.diagnostics import check_executors, is_stopped
from batch_pipeline.spark.encoder import SparkEncoder
from batch_pipeline.spark.executor_archive import build_archive
from batch_pipeline.spark.java import JVM_OPTIONS, spark_home
from batch_pipeline.spark.session import SparkSettings, close_session, open_session
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.pipeline.garbage_fixture import GarbageHarness, paths
from batch_pipeline_tests.seeds import plan, query
from batch_pipeline_tests.spark import transforms
from batch_pipeline_tests.spark.encode_fixture import EncodeRun, names
from batch_pipeline_tests.spark.spark_cluster import StandaloneCluster, standalone_cluster
from batch_pipeline_tests.storage_roots import records

pytestmark = pytest.mark.long

FILES = 60
TASK_ITEMS = 20  # replaces `task_planning.MAX_TASK_ITEMS`, for three tasks
SLOW = {"BATCH_PIPELINE_FAILPOINTS": "encode.before_rename=sleep:4"}
ONLY_HERE = """
def kept(parts):
    yield from parts

def same(frame):
    return frame.mapInPandas(kept, frame.schema)
"""
# Executors start as fast as the driver; they use the same Java.
QUICK = {"spark.executor.extraJavaOptions": " ".join(JVM_OPTIONS)}


def land_files(folder: Path, session: SparkSession) -> EncodeRun:
    """Land sixty files of one record each; a part file holds seven records."""
    folder.mkdir()
    run = EncodeRun(folder, session)
    run.configure(part_limits=replace(run.stream.part_limits, max_records=7))
    for number in range(FILES):
        run.land(b"id,name\n%d,n%d\n" % (number, number))
    return run


def encode_and_check(folder: Path, session: SparkSession) -> list[str]:
    """Encode the files, check each record, and return the digests of the part files."""
    result = (run := land_files(folder, session)).encode(id="integer", name="string")
    assert [record["id"] for record in records(result.part_files)] == list(range(FILES))
    assert run.files() == sorted(names(result.part_files))
    assert len(result.part_files) == 9
    return [part.sha256 for part in result.part_files]


@dataclass(frozen=True)
class Cluster:
    """A cluster of a fast and a slow worker, and a Python without the product."""

    standalone: StandaloneCluster
    home: Path
    bare_python: str

    def session(self, packed: Path | None = None, **conf: str) -> SparkSession:
        """Return the shared session, or a new one if it no longer works."""
        master, conf = self.standalone.master, QUICK | conf
        return open_session(SparkSettings(home=self.home, master=master, packed=packed, conf=conf))

    @contextmanager
    def bare_session(self, packed: Path | None = None) -> Iterator[SparkSession]:
        """Open a session whose executors use the bare Python."""
        close_session()
        try:
            yield self.session(packed, **{"spark.pyspark.python": self.bare_python})
        finally:
            close_session()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore
) -> Iterator[Cluster]:
    """The cluster, on the bundled Java; its workers have S3 credentials but no endpoint."""
    keys = {name: text for name, text in object_store.environment.items() if "_KEY" in name}
    folder = tmp_path_factory.mktemp("cluster")
    bare = folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCH_PIPELINE_JAVA", "bundled")
        with standalone_cluster(folder / "spark", keys, keys | SLOW) as standalone:
            try:
                yield Cluster(standalone, folder / "home", str(bare / "bin" / "python"))
            finally:
                close_session()


@pytest.fixture(scope="module", autouse=True)
def small_tasks() -> Iterator[None]:
    """Split the files into three tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_planning, "MAX_TASK_ITEMS", TASK_ITEMS)
        yield


@pytest.fixture(scope="module")
def local_digests(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> list[str]:
    """The digests of the part files of a local session of two cores."""
    close_session()
    session = open_session(SparkSettings(home=cluster.home, master="local[2]"))
    try:
        return encode_and_check(tmp_path_factory.mktemp("local") / "run", session)
    finally:
        close_session()


def executor_count(session: SparkSession) -> int:
    """Return the number of registered executors, without the driver."""
    return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def batch_of(run: EncodeRun, database: Database) -> GarbageHarness:
    """Register the landed files and plan one batch."""
    stream = replace(run.stream, limits=limits(max_count=FILES, max_weight=2**20))
    PartFileStorage(stream.storage).prepare()
    table = database.meta_table(stream.name)
    table.register([item.file for item in run.items], accept_changed=False)
    batches = plan(database, stream.limits)
    assert len(batches) == 1
    columns = RecordSchema.from_json([("id", "integer"), ("name", "string")]).columns
    database.schemas.widen(stream.name, columns, text_source=True)
    return GarbageHarness(database=database, root=run.root, batches=batches, stream=stream)


def publish(harness: GarbageHarness, session: SparkSession) -> Manifest:
    """Encode and publish the batch, as a run does."""
    database = harness.database
    context = EncodeContext(
        stream=harness.stream,
        meta_table=database.meta_table(harness.stream.name),
        schemas=database.schemas,
        attempts=database.attempts,
        encoder=SparkEncoder(lambda: session),
        storage=harness.storage,
    )
    return encode(context, harness.batches[0], run_id="run-1").manifest


def is_in_middle_of_last_task(root: Path) -> bool:
    """Return whether two tasks are done and the third has finished some of its part files."""
    files = [path.name for path in root.iterdir()]
    finished = sum(name.endswith(".gz") for name in files)
    return finished in {7, 8} and sum(name.endswith(".tmp") for name in files) == 1


def test_batch_with_killed_worker_is_published_once_and_completely(
    cluster: Cluster, tmp_path: Path, database: Database, local_digests: list[str]
) -> None:
    """The published bytes equal those of a local session.

    The slow worker is killed with its executor after one or two part files of its task, while the
    next one is open.
    """
    slow = cluster.standalone.workers[1]
    session = cluster.session()
    with ThreadPoolExecutor() as threads:
        wait_until(lambda: executor_count(session) == 2, "both executors come")
        run = land_files(tmp_path / "run", session)
        harness = batch_of(run, database)
        running = threads.submit(publish, harness, session)
        wait_until(
            lambda: is_in_middle_of_last_task(run.root) or running.done(),
            "the slow worker is in mid-task",
        )
        assert not running.done()
        slow.kill()
        manifest = running.result()

    listed = sorted(names(manifest.part_files))
    left = sorted(set(run.files()) - set(listed))
    assert [part.sha256 for part in manifest.part_files] == local_digests
    assert [one["id"] for one in records(manifest.part_files)] == list(range(FILES))
    attempts = query(database, "SELECT number, status, generation FROM batch_pipeline.attempt")
    assert attempts == [(1, "succeeded", 1)]
    manifest_files = [name for name in left if name.endswith(".json")]
    assert len(manifest_files) == 1
    lost = [name for name in left if name not in manifest_files]
    assert {name.startswith(".") for name in lost} == {True, False}  # open and finished files
    harness.age()
    assert sorted(paths(harness.collect())) == lost
    assert run.files() == sorted([*listed, *manifest_files])
    assert [Path(to_path(part.uri)).exists() for part in manifest.part_files] == [True] * 9


def test_executors_without_the_package_are_reported(cluster: Cluster) -> None:
    with (
        pytest.raises(ConfigurationError, match="cannot run tasks") as raised,
        cluster.bare_session(),
    ):
        pass

    text = str(raised.value)
    start = f"The executor on {socket.gethostname()}, of Spark at spark://127.0.0.1:"
    assert text.startswith(start)
    assert "lacks modules: batch_pipeline, boto3, fastavro" in text
    assert "batch-pipeline pack packed.tar.gz" in text


def test_executors_need_only_the_packed_archive(
    cluster: Cluster, tmp_path: Path, bucket: str, local_digests: list[str]
) -> None:
    """The executors have their own credentials; the driver forwards the S3 endpoint."""
    packed = tmp_path / "packed.tar.gz"
    build_archive(packed)
    with cluster.bare_session(packed) as session:
        assert encode_and_check(tmp_path / "run", session) == local_digests
        run = land_files(tmp_path / "to-s3", session)
        run.configure(storage=Storage(root=f"{bucket}/batches", prefix="p-"))
        written = run.encode(id="integer", name="string").part_files

    assert [part.sha256 for part in written] == local_digests
    assert {part.uri.rpartition("/")[0] for part in written} == {f"{bucket}/batches"}


def test_executors_without_the_python_are_reported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cluster.session()
    monkeypatch.setattr(session.sparkContext, "pythonExec", "/no/such/python")
    with pytest.raises(ConfigurationError, match="cannot run tasks") as raised:
        check_executors(session.sparkContext)
    assert "it has no /no/such/python" in str(raised.value)
    assert "Set PYSPARK_PYTHON to a Python 3." in str(raised.value)


def test_executors_without_a_module_of_the_transform_are_reported(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(ONLY_HERE)
    monkeypatch.syspath_prepend(tmp_path)
    run = EncodeRun(tmp_path, cluster.session())
    run.configure(transform="only_here:same")
    run.land(b"id\n1\n")

    with pytest.raises(ConfigurationError, match="cannot run tasks") as raised:
        run.encode(id="integer")

    text = str(raised.value)
    assert text.startswith("The executor on ")
    assert " lacks modules: only_here. Nothing was published. Run" in text
    assert "`batch-pipeline pack packed.tar.gz --with only_here`" in text
    assert run.files() == []


@contextmanager
def blocked_encode(
    folder: Path, session: SparkSession
) -> Iterator[tuple[EncodeRun, "Future[EncodeResult]"]]:
    """Encode in a thread with a transform that blocks on a worker while a file `mark` exists."""
    mark = folder / "mark"
    run = EncodeRun(folder, session)
    run.configure(transform=f"{transforms.__name__}:blocked")
    run.land(f"mark\n{mark}\n".encode())
    with ThreadPoolExecutor() as threads:
        running = threads.submit(run.encode, mark="string")
        wait_until(lambda: mark.exists() or running.done(), "the function has started")
        try:
            yield run, running
        finally:
            mark.unlink(missing_ok=True)


def test_session_whose_context_stops_during_transform_is_replaced(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The JVM stops the context but keeps running, as when the master removes the application."""
    session = cluster.session()
    with blocked_encode(tmp_path, session) as (_, running):
        session.sparkContext._jsc.sc().stop()
        (tmp_path / "mark").unlink()  # otherwise the function would continue
        with pytest.raises(SparkUnavailableError, match="SparkContext was shut down"):
            running.result()

    assert cluster.session() is not session
    assert cluster.session().range(3).count() == 3


def test_session_of_restarted_master_is_replaced(cluster: Cluster) -> None:
    """Its context has no executors; the JVM would wait for them forever."""
    session = cluster.session()
    cluster.standalone.restart_master()
    wait_until(lambda: executor_count(session) == 0, "the executors have ended")
    assert not is_stopped(session.sparkContext)

    assert cluster.session() is not session
    assert cluster.session().range(3).count() == 3


def test_job_of_restarted_master_fails(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise wait forever, as its context is not stopped."""
    monkeypatch.setattr(diagnostics, "EXECUTOR_LOSS_SECONDS", 1.0)
    session = cluster.session()
    with blocked_encode(tmp_path, session) as (run, running):
        cluster.standalone.restart_master()
        with pytest.raises(SparkUnavailableError, match="the cluster started no others"):
            running.result()

    assert run.files() == []
    assert cluster.session() is not session


def test_unreachable_master_fails_at_once(tmp_path: Path) -> None:
    close_session()
    settings = SparkSettings(home=tmp_path, master="spark://127.0.0.1:1")
    with pytest.raises(SparkUnavailableError) as raised:
        open_session(settings)
    assert (raised.value.target, raised.value.reason) == (settings.master, "connection refused")
    assert list((tmp_path / "spark" / "scratch").iterdir()) == []


def test_local_cluster_writes_same_bytes_as_local_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the cluster are deleted with the session, and the installed package has none."""
    monkeypatch.setenv("BATCH_PIPELINE_JAVA", "bundled")
    digests = {}
    for master in ("local[2]", "local-cluster[2,1,1024]"):
        try:
            session = open_session(SparkSettings(home=tmp_path / "home", master=master))
            digests[master] = encode_and_check(tmp_path / master, session)
        finally:
            close_session()

    assert digests["local-cluster[2,1,1024]"] == digests["local[2]"]
    assert list((tmp_path / "home" / "spark" / "scratch").iterdir()) == []
    assert not (spark_home() / "work").exists()
