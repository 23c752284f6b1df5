"""Shows that a change kept behaviour: what the product does is compared with committed files.

The files below `data` were made by release 0.1.0, before the package was cut and regrouped:

- `golden_files.json`: digests of part files, quarantine files and manifests of some 120 small
  inputs in up to nine encodings, with the counts of their records. `golden_libraries.json` has the
  versions of the libraries that decide about the bytes; with other versions the test fails.

How to use it:

1. Run it: `uv run python -m batch_pipeline_tests.regression`, or the whole suite, which includes
   it. A failure names each entry that differs, with its old and its new value.
2. If the change is intended: `uv run python -m batch_pipeline_tests.regression --update` rewrites
   the files. Options behind it go to pytest, such as `-k golden`.
3. Commit the files with the change that caused it, and explain each changed line of their diff:
   which decision, which fixed defect, or which upgraded library it follows from.

What differs between any two runs is replaced before the comparison: paths (`HOME`), times, the
tokens of attempts and the random part of file names. Entries are sorted, one on a line. To look at
bytes that differ, run the test with `--basetemp FOLDER` on both revisions and compare the files
below `batches`.
"""
