"""Encoding from and to S3 compared with local disk, and the cost of listing many keys.

The same files are in a folder and in a bucket, and the part files must have the same bytes wherever
they are written. Then a bucket is filled with keys and polled as by a sensor, including the
registration in a database of its own: the first polls, and polls without new keys.

The store is moto's server, which uses the same cores, or the one in
`BATCH_PIPELINE_TEST_S3_ENDPOINT`. Run `python -m batch_pipeline_tests.benchmarks store
[--records 100000] [--files 10 2000] [--rounds 2] [--only jsonl-jsonl …] [--keys 10000]`; 0 keys
skip the listing, 0 records the encode. moto sorts all keys for each page, so use a real server for
many keys: `uv run .ci/real_s3 python -m batch_pipeline_tests.benchmarks store`.
"""

import argparse
import os
from pathlib import Path

from batch_pipeline.storage import s3_client
from batch_pipeline_tests.benchmarks.store_encode import compare_encodes
from batch_pipeline_tests.benchmarks.store_looks import poll_bucket
from batch_pipeline_tests.benchmarks.workload import CACHE, CONVERSIONS
from batch_pipeline_tests.object_store import ENDPOINT, open_store


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, nargs="+", default=[10, 2_000])
    parser.add_argument("--rounds", type=int, default=2)
    default = ["jsonl-jsonl", "jsonl-parquet"]
    parser.add_argument("--only", choices=CONVERSIONS, nargs="+", default=default)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    with open_store() as store:
        os.environ.update(store.environment)
        s3_client.forget()
        kind = "the server that the variable names" if ENDPOINT in os.environ else "moto's server"
        print(f"{kind}, {os.cpu_count()} cores", flush=True)
        if args.records:
            for line in compare_encodes(store, args):
                print(line, flush=True)
        if args.keys:
            for line in poll_bucket(store, args.keys, args.rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
