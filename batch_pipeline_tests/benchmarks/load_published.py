"""Loads a published batch into a table in a separate process: `… URL MODE`."""

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.load import Loading, PostgresTarget, WriteMode
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests import factories
from batch_pipeline_tests.benchmarks.measures import Cost, peak_bytes

TABLE = "wide"


def loading_of(schema: RecordSchema, encoding: Encoding, parts: Sequence[PartFile]) -> Loading:
    """Return part files as the first generation of a batch with the key `id`."""
    manifest = factories.manifest(
        encoding=encoding, schema=schema, key_properties=("id",), part_files=tuple(parts)
    )
    return Loading(
        stream="wide",
        publish_number=1,
        label="00000001-00000010",
        manifest=manifest,
        message_name=TABLE,
    )


def load_in_process(url: str, mode: WriteMode, loading: Loading) -> Cost:
    """Load in a new process; return the cost without the start of the process."""
    command = [sys.executable, "-m", "batch_pipeline_tests.benchmarks.load_published"]
    result = subprocess.run(
        [*command, url, mode],
        input=pickle.dumps(loading),
        check=True,
        stdout=subprocess.PIPE,
    )
    return Cost(**json.loads(result.stdout))


def main() -> None:
    """Load the batch on standard input and print the cost."""
    url, mode = sys.argv[1:]
    loading: Loading = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the benchmark
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE", mode=WriteMode(mode))
    started = time.perf_counter()
    with closing(PostgresLoader(target, url)) as loader:
        loaded = loader.load(loading)
    cost = Cost(seconds=time.perf_counter() - started, peak_bytes=peak_bytes())
    assert loaded.records == sum(part.records for part in loading.manifest.part_files)
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
