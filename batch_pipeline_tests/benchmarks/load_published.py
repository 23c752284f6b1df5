"""Loads one pickled batch into a table, in a process of its own: `… URL MODE LOADING_FILE`."""

import pickle
import sys
from contextlib import closing
from pathlib import Path

from batch_pipeline.domain.target import PostgresTarget, WriteMode
from batch_pipeline.postgres.loader import PostgresLoader


def main() -> None:
    """Load what the arguments say and print how many records the target acknowledged."""
    url, mode, path = sys.argv[1:]
    loading = pickle.loads(Path(path).read_bytes())  # noqa: S301 - the benchmark has written it
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE_URL", mode=WriteMode(mode))
    with closing(PostgresLoader(target, url)) as loader:
        print(loader.load(loading, str(Path(path).parent)).records)


if __name__ == "__main__":
    main()
