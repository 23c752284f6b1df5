"""Keys, locations, names, filters, states, manifest and stream files: parsers and inverses."""

import json
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from singer_sdk.plugin_base import JSONSchemaValidator

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.config.units import (
    MAX_BYTES,
    parse_bytes,
    parse_duration,
    parse_time,
)
from batch_pipeline.model.backfill import backfill_key, parse_backfill_key
from batch_pipeline.model.batch import MAX_ID, key_digits, parse_partition_key, partition_key
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    ManifestFileTakenError,
    StreamFileError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.garbage import Folder, Probe, parse_name
from batch_pipeline.model.location import shown, split_location, to_location, to_path, to_uri
from batch_pipeline.model.manifest import ManifestUnfitError, parse_manifest_file
from batch_pipeline.model.planning import MAX_DURATION
from batch_pipeline.model.schema import RecordSchema, schema_of
from batch_pipeline.singer.messages import read_bookmark
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, read_config
from batch_pipeline.storage.part_storage import check_manifest_file, manifest_file_text
from batch_pipeline_tests.config import test_stream_file, test_stream_file_mistakes
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.guarantees.fuzz.damage import CORPUS, Batch, damaged_json, damaged_text
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect
from batch_pipeline_tests.model.test_manifest import NAME, item, manifest_with_origin, origin

KEYS = damaged_text(*CORPUS["keys"])
LOCATIONS = damaged_text(*CORPUS["locations"])
NAMES = damaged_text(*CORPUS["names"])
SIZES = damaged_text(*CORPUS["sizes"])
FILTERS = damaged_json(*CORPUS["filters"])
STATES = damaged_json(*CORPUS["states"])
POINTERS = damaged_json(manifest().to_json(), manifest(generation=7).to_json(), {"token": "x"})
SCHEMAS = damaged_json(*CORPUS["declared columns"])
CONFIGS = damaged_json(*CORPUS["configs"])
_OWN = manifest()


def text(data: bytes) -> str:
    """Decode bytes, with U+FFFD for invalid ones."""
    return data.decode("utf-8", "replace")


def refusing(*errors: type[Exception]) -> Callable[[Callable[[bytes], object]], Check]:
    """Decorate a function that raises one of the errors for bad input, so that it is a check.

    The message of the error must not be empty or too long.
    """

    def decorated(check: Callable[[bytes], object]) -> Check:
        def checked(data: bytes) -> Outcome:
            try:
                check(data)
            except errors as error:
                reason = str(error)
                expect(0 < len(reason) < 100_000, "a message of", len(reason), "characters")
                return Outcome.REFUSED
            return Outcome.READ

        return checked

    return decorated


def of_json(check: Callable[[Any], object]) -> Callable[[bytes], object]:
    """Decorate a function of a JSON value; refuse invalid JSON as callers of the product do."""

    def checked(data: bytes) -> None:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidValueError("JSON", "(not shown)", "JSON") from None
        check(value)

    return checked


@refusing(InvalidValueError)
def check_key(data: bytes) -> None:
    """Check that a parsed key is formatted like the input."""
    written = text(data)
    name, colon, key = written.rpartition(":")
    if colon:
        name, id_range = parse_backfill_key(written)
    else:
        id_range = parse_partition_key(key)
    key = partition_key(id_range, key_digits(key))
    again = backfill_key(name, key) if colon else key
    expect(again == written, written, "became", again)


@refusing(InvalidValueError)
def check_location(data: bytes) -> None:
    """Check that normalizing and splitting keep a location: path, URI or range."""
    location = to_location(text(data))
    expect(to_location(location) == location, location, "became", to_location(location))
    uri, part = split_location(location)
    again = uri if part is None else uri + part.fragment
    expect(again == location, location, "became", again)
    expect("\0" not in shown(location), "a NUL in", location)
    if location.startswith("file:"):
        path = to_path(location)
        expect(path.startswith("/") and to_path(to_uri(path)) == path, path)


def check_name(data: bytes) -> Outcome:
    """Check that a name is either written by the product or unknown."""
    name = text(data)
    found = [parse_name(folder, name) for folder in Folder]
    known = [file for file in found if file is not None]
    for file in known:
        is_right = isinstance(file, Probe) or file.head in name
        expect(is_right and name.isascii(), name, "is", file)
    return Outcome.READ if known else Outcome.REFUSED


@refusing(InvalidValueError)
def _check_bytes(data: bytes) -> None:
    expect(0 <= parse_bytes(text(data)) <= MAX_BYTES, data)


@refusing(InvalidValueError)
def _check_duration(data: bytes) -> None:
    expect(0 <= parse_duration(text(data)).total_seconds() <= MAX_DURATION.total_seconds())


@refusing(InvalidValueError)
def _check_time(data: bytes) -> None:
    expect(parse_time(text(data)).astimezone(UTC).tzinfo is UTC, data)


def check_size(data: bytes) -> Outcome:
    """Check that sizes, durations and times are within their bounds."""
    outcomes = {check(data) for check in (_check_bytes, _check_duration, _check_time)}
    return Outcome.READ if Outcome.READ in outcomes else Outcome.REFUSED


@refusing(InvalidValueError)
@of_json
def check_filter(value: Any) -> None:
    """Check that a parsed filter is equal after a round trip."""
    found = parse_filter(value)
    expect(parse_filter(found.to_json()) == found, found)


def open_states(folder: Path) -> Check:
    """Return the check that a bookmark has valid publish numbers, or is refused."""
    path = folder / "state.json"

    @refusing(ConfigurationError)
    def check(data: bytes) -> None:
        path.write_bytes(data)
        bookmark = read_bookmark(path, "orders")
        numbers = bookmark.numbers.values()
        expect(all(0 <= number <= MAX_ID for number in numbers), bookmark)
        if not numbers:
            state = json.loads(data)
            written = state.get("value", state).get("bookmarks", {}).get("orders")
            expect(written is None, "a bookmark that was ignored", written)

    return check


@refusing(ManifestFileTakenError)
def check_pointer(data: bytes) -> None:
    """Check that a manifest file belongs to a manifest only if the token matches."""
    expect(json.loads(manifest_file_text(_OWN)) == _OWN.to_json(), "a manifest file")
    check_manifest_file(data, _OWN, "file:///batches/manifests/x.json")
    expect(json.loads(data)["token"] == str(_OWN.token), "another attempt's")


@refusing(InvalidValueError)
@of_json
def check_schema(value: Any) -> None:
    """Check that declared columns are equal after a round trip."""
    schema = schema_of(value)
    expect(RecordSchema.from_json(schema.to_json()) == schema, schema)
    expect(set(schema.names) == set(value["properties"]), schema.names)


_CONFIG_VALIDATOR = JSONSchemaValidator(CONFIG_SCHEMA)


@refusing(ConfigurationError)
@of_json
def check_config(value: Any) -> None:
    """Check the target's config, after its JSON Schema as in the Singer SDK."""
    if not _CONFIG_VALIDATOR.is_valid(value):
        raise ConfigurationError("the config does not fit the JSON Schema")
    read_config(value, CONFIG_SCHEMA["properties"])


# Manifest files with everything that is read after a restore

_ITEMS = (
    item(1, location="file:///landing/a%20b.csv", etag="x"),
    item(3, read=1, written=0, quarantined=1, bad_file="does not exist"),
)
MANIFESTS = damaged_json(
    json.loads(manifest_file_text(manifest_with_origin(origin=origin(items=_ITEMS))))
)


def check_manifest(data: bytes) -> Outcome:
    """Compare a parsed manifest file with its JSON."""
    try:
        found = parse_manifest_file(data, NAME)
    except ManifestUnfitError as error:
        reason = str(error)
        expect(NAME in reason and len(reason) < 20_000, reason[:200])
        return Outcome.REFUSED
    values = json.loads(data)
    records = sum(part["records"] for part in values["part_files"])
    expect(found.records == records, found.records)
    origin = values.get("inventory")
    expect(found.number == (origin and origin["publish_number"]), found.number)
    stream = found.job and found.job.stream
    expect(stream == (origin and origin["job"]["stream"]), stream)
    return Outcome.READ


# Stream files

_LOADED = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
  source: {uri: ./landing}
  key_properties: [id]
  targets:
    dw: {postgres: {conn: '${DW}', schema: sales, table: o, mode: upsert}}
    lake: {command: target-csv --log 'a b', config: {port: 5, list: [$NAME]}, timeout: 90s}
"""
_PLAIN = [
    test_stream_file_mistakes.MINIMAL,
    test_stream_file.FULL,
    test_stream_file.WITH_TABLE,
    _LOADED,
]
# As text or as values, because JSON is YAML.
STREAM_FILES: st.SearchStrategy[Batch] = st.one_of(
    damaged_text(*_PLAIN, *CORPUS["odd stream files"]),
    damaged_json(*(yaml.safe_load(text) for text in _PLAIN)),
)


def open_stream_files(folder: Path) -> Check:
    """Return the check that a stream has the name in its file, and that errors name the file."""
    path = folder / "defs.yaml"

    def check(data: bytes) -> Outcome:
        path.write_bytes(data)
        try:
            stream = read_stream_file(path)
        except StreamFileError as error:
            reason = str(error)
            expect(reason.startswith(str(path)) and len(reason) < 20_000, reason[:200])
            return Outcome.REFUSED
        attributes = yaml.safe_load(data.decode("utf-8-sig"))["attributes"]
        expect(stream.name == attributes["stream"], stream.name, attributes["stream"])
        expect(list(stream.key_properties) == attributes.get("key_properties", []), attributes)
        json.dumps(str(stream))
        return Outcome.READ

    return check
