"""The text of the stream file that a Singer stream without one gets. Nothing is written here."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from singer_sdk.singerlib.json import serialize_json

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.json_schema import schema_of
from batch_pipeline.singer.target.places import WantedStream
from batch_pipeline.singer.target.refusals import PlaceUnfitError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./:+-]*", re.ASCII)
# Line ends of YAML that are none of JSON, and what YAML does not take as it is.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_TEMPLATE = re.compile(r"\{[{%#]")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_YAML = """\
# Written by target-batch-pipeline from the first SCHEMA of the Singer stream {singer_name}.
# It is yours now: nothing writes to it again.
type: batch_pipeline.BatchStream

attributes:
  stream: {stream}
  source:
    uri: {uri}  # where the target lands its files
    format: auto
  key_properties: {keys}
  schema:
    {schema}
    evolution: add  # columns that come later are added, types are widened
  encoding:
    format: jsonl
    compression: gzip
  storage:
    root: ./batches  # where the encoded files are written
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """A stream file, and the JSON Schema beside it; None where the columns are inferred."""

    stream_file: str
    schema_name: str
    schema_file: str | None


def scaffold(wanted: WantedStream, stream: str, uri: str) -> Scaffold:
    """Write a stream file for a Singer stream, with what its SCHEMA says.

    A SCHEMA that is no list of columns, for example one with references, or that has none, leaves
    them to be inferred from the records.

    Raises:
        PlaceUnfitError: a key property would be a template, which Dagster projects execute.
    """
    for key in wanted.key_properties:
        if _TEMPLATE.search(key):
            problem = f"has the key property {key!r}, which would be a template in a stream file"
            raise PlaceUnfitError(stream, problem)
    schema_name = f"{stream}.schema.json"
    declared: str | None = None
    with suppress(InvalidValueError):
        if schema_of(wanted.schema).columns:
            declared = serialize_json(dict(wanted.schema)) + "\n"
    text = _YAML.format(
        singer_name=json.dumps(wanted.name),
        stream=_scalar(stream),
        uri=_scalar(uri),
        keys=f"[{', '.join(_quoted(key) for key in wanted.key_properties)}]",
        schema="mode: infer" if declared is None else f"file: {_scalar(schema_name)}",
    )
    return Scaffold(stream_file=text, schema_name=schema_name, schema_file=declared)


def _scalar(word: str) -> str:
    is_plain = _PLAIN.fullmatch(word) and word.lower() not in _WORDS and ": " not in word
    return word if is_plain else _quoted(word)


def _quoted(word: str) -> str:
    text = json.dumps(word, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
