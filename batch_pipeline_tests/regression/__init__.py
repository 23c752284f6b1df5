"""Regression tests that compare the behaviour of the product with committed snapshots.

The files below `data` were created by release 0.1.0, before the package was restructured:

- `golden_files.json`: digests of part files, quarantine files and manifests of some 120 inputs in
  up to nine encodings, with the counts of their records and their columns. `origin` is the digest
  of the manifest's key `inventory`, `manifest` that of the other keys. `golden_libraries.json` has
  the versions of the libraries that determine the bytes; with other versions the test fails.
- `published_manifests.json`: manifests in full, published by the command `run` on Spark, which must
  also publish the golden files.
- `python_names.json`, `commands.json`, `environment.json`, `stream_file.json`,
  `dagster_definitions.json`: names that users write in code and configuration. The Dagster
  definitions include what a user sees of them, such as descriptions, tags and intervals.
- `json_keys.json`, `message_keys.json` (with manifests), `dagster_metadata.json`, `metrics.json`:
  names that programs read. The command `pack` is not run.
- `guarantees.json`: the tests of each promise.
- `home_0_1_0`: a home that every later release must open and continue (`home_0_1_0.py`). It is
  never regenerated.

Usage:

1. Run `uv run python -m batch_pipeline_tests.regression`, or the whole suite. A failure names each
   entry that differs, with its old and its new value.
2. If the change is intended: `uv run python -m batch_pipeline_tests.regression --update` rewrites
   the files. Further options are passed to pytest, such as `-k golden`.
3. Commit the files with the change, and explain each changed line: a decision, a fixed defect, or
   an upgraded library. A removed command is also removed from the list in `test_printed_keys.py`, a
   removed format or key from the inputs; then only their lines may disappear from the files.

Values that differ between two runs are replaced: paths (`HOME`), times, run ids, tokens of attempts
and the random part of file names. Entries are sorted, one per line. Digests are the first 16 hex
digits of SHA-256. To see bytes that differ, run the test with `--basetemp FOLDER` on both revisions
and compare the files below `batches`.
"""
