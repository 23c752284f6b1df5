"""Shows that a change kept behaviour: what the product does is compared with committed files.

The files below `data` were made by release 0.1.0, before the package was cut and regrouped:

- `golden_files.json`: digests of part files, quarantine files and manifests of some 120 inputs in
  up to nine encodings, with the counts of their records and their columns. `origin` is the digest
  of the manifest's key `inventory`, `manifest` that of the rest. `golden_libraries.json` has the
  versions of the libraries that decide about the bytes; with other versions the test fails.
- `published_manifests.json`: manifests in full, published by the command `run` on Spark, which must
  also publish the golden files.
- `python_names.json`, `commands.json`, `environment.json`, `stream_file.json`,
  `dagster_names.json`: names that users write.
- `json_keys.json`, `message_keys.json` (with manifests), `dagster_metadata.json`, `metrics.json`:
  names that programs read. The command `pack` is not run.
- `guarantees.json`: the tests of each promise.
- `home_0_1_0`: a home that every later release must open and continue (`home_0_1_0.py`). It is
  never written again.

How to use it:

1. Run it: `uv run python -m batch_pipeline_tests.regression`, or the whole suite, which includes
   it. A failure names each entry that differs, with its old and its new value.
2. If the change is intended: `uv run python -m batch_pipeline_tests.regression --update` rewrites
   the files. Options behind it go to pytest, such as `-k golden`.
3. Commit the files with the change that caused it, and explain each changed line of their diff:
   which decision, which fixed defect, or which upgraded library it follows from. A command that is
   removed is also removed from the list in `test_printed_keys.py`, a removed format or key from the
   inputs; their lines then vanish from the files, and no other line may change.

What differs between any two runs is replaced before the comparison: paths (`HOME`), times, ids of
runs, the tokens of attempts and the random part of file names. Entries are sorted, one on a line.
Digests are the first 16 hex digits of SHA-256. To look at bytes that differ, run the test with
`--basetemp FOLDER` on both revisions and compare the files below `batches`.
"""
