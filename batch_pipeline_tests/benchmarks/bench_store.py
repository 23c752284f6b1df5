"""Encoding from and to S3 beside local disk, and what it costs to list many keys.

Both ends of the encode are tried: the same files lie in a folder and in a bucket, and the same
bytes of part files must come out wherever they are written. Then a bucket is filled with keys and
looked at as a sensor does, with a register step to a database of its own: the first look, and quiet
ones.

The store is moto's server, which takes its share of the same cores, or the one that
`BATCH_PIPELINE_TEST_S3_ENDPOINT` names. Run `python -m batch_pipeline_tests.benchmarks store
[--records 100000] [--files 10 2000] [--rounds 2] [--only jsonl-jsonl …] [--keys 10000]`; 0 keys
leave the listing out, 0 records the encode. moto sorts all keys for each page, so many of them want
a real server: `uv run .ci/real_s3 python -m batch_pipeline_tests.benchmarks store`.
"""

import argparse
import os
from pathlib import Path

from batch_pipeline.storage import s3_client
from batch_pipeline_tests.benchmarks.store_encode import encodes
from batch_pipeline_tests.benchmarks.store_looks import looks
from batch_pipeline_tests.benchmarks.workload import CACHE, CONVERSIONS
from batch_pipeline_tests.object_store import ENDPOINT, open_store


def main() -> None:
    """Measure what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, nargs="+", default=[10, 2_000])
    parser.add_argument("--rounds", type=int, default=2)
    default = ["jsonl-jsonl", "jsonl-parquet"]
    parser.add_argument("--only", choices=CONVERSIONS, nargs="+", default=default)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    with open_store() as store:
        os.environ.update(store.environment)
        s3_client.forget()
        kind = "the server that the variable names" if ENDPOINT in os.environ else "moto's server"
        print(f"{kind}, {os.cpu_count()} cores", flush=True)
        if given.records:
            for line in encodes(store, given):
                print(line, flush=True)
        if given.keys:
            for line in looks(store, given.keys, given.rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
