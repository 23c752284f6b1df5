"""All targets, and their numbers of inputs, which are larger for cheap checks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.guarantees.fuzz import (
    files,
    singer_lines,
    small_texts,
    whole_files,
)
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Target

_AUTO, _CSV = SourceFormat.AUTO, SourceFormat.CSV
_JSON, _JSONL = SourceFormat.JSON, SourceFormat.JSONL


def _files(*declared: SourceFormat) -> Callable[[Path], Check]:
    return partial(whole_files.open_check, declared=declared)


def _always(check: Check) -> Callable[[Path], Check]:
    """Return a check that needs no folder."""
    return lambda _folder: check


_ALL = (
    Target("csv", files.text(files.CSV), _files(_CSV, _AUTO), 20, 40_000),
    Target("jsonl", files.text(files.JSONL), _files(_JSONL, _AUTO), 20, 40_000),
    Target("json", files.text(files.DOCUMENTS), _files(_JSON, _JSON, _AUTO), 20, 40_000),
    Target("avro", files.AVRO, _files(_AUTO), 20, 40_000),
    Target("parquet", files.PARQUET, _files(_AUTO), 20, 30_000),
    Target("arrow", files.ARROW, _files(_AUTO), 10, 20_000),
    Target("packed", files.COMPRESSED, _files(_AUTO), 20, 30_000),
    Target("large", files.LARGE, _files(_AUTO, _CSV, _JSON, _JSONL), 2, 200),
    Target("dialects", files.text(files.TEXT), whole_files.open_dialects, 20, 30_000),
    Target("declared", whole_files.declared_tables(), whole_files.open_declared, 20, 40_000),
    Target("keys", small_texts.KEYS, _always(small_texts.check_key), 60, 150_000),
    Target("locations", small_texts.LOCATIONS, _always(small_texts.check_location), 60, 120_000),
    Target("names", small_texts.NAMES, _always(small_texts.check_name), 30, 60_000),
    Target("sizes", small_texts.SIZES, _always(small_texts.check_size), 30, 60_000),
    Target("filters", small_texts.FILTERS, _always(small_texts.check_filter), 60, 80_000),
    Target("states", small_texts.STATES, small_texts.open_states, 30, 60_000),
    Target("manifest files", small_texts.POINTERS, _always(small_texts.check_pointer), 30, 30_000),
    Target("manifests", small_texts.MANIFESTS, _always(small_texts.check_manifest), 30, 30_000),
    Target("declared columns", small_texts.SCHEMAS, _always(small_texts.check_schema), 30, 40_000),
    Target("configs", small_texts.CONFIGS, _always(small_texts.check_config), 30, 60_000),
    Target("messages", singer_lines.MESSAGES, singer_lines.open_messages, 60, 120_000),
    Target("schemas", singer_lines.SCHEMAS, singer_lines.open_schemas, 20, 20_000),
    Target("batch files", singer_lines.BATCH_FILES, singer_lines.open_batch_files, 30, 40_000),
    Target("load lines", singer_lines.LOAD_LINES, singer_lines.open_load_lines, 30, 40_000),
    Target("stream files", small_texts.STREAM_FILES, small_texts.open_stream_files, 30, 12_000),
)
TARGETS = {target.name: target for target in _ALL}
