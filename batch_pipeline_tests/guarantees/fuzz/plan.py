"""All targets, and how many inputs each takes: cheap ones most of them, whole files the rest."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline_tests.guarantees.fuzz import (
    declared_files,
    files,
    manifests,
    singer_lines,
    small_texts,
    stream_files,
)
from batch_pipeline_tests.guarantees.fuzz.harness.json_mutations import json_mutated
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Target
from batch_pipeline_tests.guarantees.fuzz.whole_files import open_check, open_dialects

_AUTO = SourceFormat.AUTO


def _files(*declared: SourceFormat) -> Callable[[Path], Check]:
    return partial(open_check, declared=declared)


_ALL = (
    Target(
        name="csv",
        corpus=files.csv,
        make=files.text_made,
        open_check=_files(SourceFormat.CSV, _AUTO),
        short=20,
        long=40_000,
    ),
    Target(
        name="jsonl",
        corpus=files.jsonl,
        make=files.text_made,
        open_check=_files(SourceFormat.JSONL, _AUTO),
        short=20,
        long=40_000,
    ),
    Target(
        name="json",
        corpus=files.documents,
        make=files.text_made,
        open_check=_files(SourceFormat.JSON, SourceFormat.JSON, _AUTO),
        short=20,
        long=40_000,
    ),
    Target(
        name="avro",
        corpus=files.avro,
        make=files.avro_made,
        open_check=_files(_AUTO),
        short=20,
        long=40_000,
    ),
    Target(
        name="parquet",
        corpus=files.parquet,
        make=files.parquet_made,
        open_check=_files(_AUTO),
        short=20,
        long=30_000,
    ),
    Target(
        name="arrow",
        corpus=files.arrow,
        open_check=_files(_AUTO),
        short=10,
        long=20_000,
    ),
    Target(
        name="packed",
        corpus=files.packed,
        make=files.packed_made,
        open_check=_files(_AUTO),
        short=20,
        long=30_000,
    ),
    Target(
        name="large",
        corpus=files.large,
        make=files.large_made,
        open_check=_files(_AUTO, SourceFormat.CSV, SourceFormat.JSON, SourceFormat.JSONL),
        short=2,
        long=200,
    ),
    Target(
        name="dialects",
        corpus=files.large,
        make=files.text_made,
        open_check=open_dialects,
        short=20,
        long=30_000,
    ),
    Target(
        name="declared",
        corpus=declared_files.corpus,
        make=declared_files.made,
        open_check=declared_files.open_check,
        short=20,
        long=40_000,
    ),
    Target(
        name="keys",
        corpus=lambda _: small_texts.KEYS,
        open_check=small_texts.open_keys,
        short=60,
        long=150_000,
    ),
    Target(
        name="locations",
        corpus=lambda _: small_texts.LOCATIONS,
        open_check=small_texts.open_locations,
        short=60,
        long=120_000,
    ),
    Target(
        name="names",
        corpus=lambda _: small_texts.NAMES,
        open_check=small_texts.open_names,
        short=30,
        long=60_000,
    ),
    Target(
        name="sizes",
        corpus=lambda _: small_texts.SIZES,
        open_check=small_texts.open_sizes,
        short=30,
        long=60_000,
    ),
    Target(
        name="filters",
        corpus=lambda _: small_texts.FILTERS,
        make=json_mutated,
        open_check=small_texts.open_filters,
        short=60,
        long=80_000,
    ),
    Target(
        name="states",
        corpus=lambda _: small_texts.STATES,
        make=json_mutated,
        open_check=small_texts.open_states,
        short=30,
        long=60_000,
    ),
    Target(
        name="pointer files",
        corpus=lambda _: small_texts.POINTERS,
        make=json_mutated,
        open_check=small_texts.open_pointers,
        short=30,
        long=30_000,
    ),
    Target(
        name="manifests",
        corpus=lambda _: manifests.POINTERS,
        make=json_mutated,
        open_check=manifests.open_check,
        short=30,
        long=30_000,
    ),
    Target(
        name="declared columns",
        corpus=lambda _: small_texts.SCHEMAS,
        make=json_mutated,
        open_check=small_texts.open_schemas,
        short=30,
        long=40_000,
    ),
    Target(
        name="configs",
        corpus=lambda _: small_texts.CONFIGS,
        make=json_mutated,
        open_check=small_texts.open_configs,
        short=30,
        long=60_000,
    ),
    Target(
        name="messages",
        corpus=lambda _: singer_lines.MESSAGES,
        make=singer_lines.line_made,
        open_check=singer_lines.open_messages,
        short=60,
        long=120_000,
    ),
    Target(
        name="schemas",
        corpus=lambda _: singer_lines.SCHEMAS,
        make=json_mutated,
        open_check=singer_lines.open_schemas,
        short=20,
        long=20_000,
    ),
    Target(
        name="batch files",
        corpus=singer_lines.batch_files,
        make=singer_lines.batch_file_made,
        open_check=singer_lines.open_batch_files,
        short=30,
        long=40_000,
    ),
    Target(
        name="load lines",
        corpus=singer_lines.load_lines,
        make=singer_lines.load_lines_made,
        open_check=singer_lines.open_load_lines,
        short=30,
        long=40_000,
    ),
    Target(
        name="stream files",
        corpus=stream_files.corpus,
        make=stream_files.made,
        open_check=stream_files.open_check,
        short=30,
        long=12_000,
    ),
)
TARGETS = {target.name: target for target in _ALL}
