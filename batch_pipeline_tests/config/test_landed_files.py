"""Proposing a stream for a folder of files, and patterns of their names."""

import bz2
import gzip
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.config.stream_proposal import (
    Proposal,
    common_word,
    kind_of,
    name_pattern,
    proposal_json,
    propose,
    text_of,
)
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.planning import Machine
from batch_pipeline.model.stream import STREAM_NAME, stream_name_of
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline_tests.encode.landed_files import parquet

MACHINE = Machine(cores=2, memory_bytes=8 * 2**30)
CSV = b"order_id,city,price\n1,Cork,9.50\n2,Lagos,12\n"
JSONL = b'{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bo"}\n'
PARQUET = parquet(pa.table({"id": [1, 2], "name": ["Ada", "Bo"]}))


def land(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files whose modification times are in the past."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1_750_000_000, 1_750_000_000))
    return folder


def propose_stream(tmp_path: Path, files: Mapping[str, bytes], **options: Any) -> Proposal:
    """Write files and propose a stream for them, in a project beside them.

    The proposed stream file must define that stream, and the stream must match as many files as the
    plan counts.
    """
    data = land(tmp_path / "data/exports", files)
    arguments = {"folder": tmp_path / "project", "place": str(data), **options}
    proposal = propose(machine=MACHINE, **arguments)
    path = arguments["folder"] / "streams" / proposal.stream.name / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text_of(proposal), encoding="utf-8")
    assert read_stream_file(path) == proposal.stream
    matched = list(SourceLanding(stream=proposal.stream, wait=False).found_files())
    assert len(matched) == proposal.plan.files
    return proposal


def source_attributes(proposal: Proposal) -> dict[str, Any]:
    """Return the attributes of the source without its URI."""
    return {key: value for key, value in proposal.attributes["source"].items() if key != "uri"}


def excluded(proposal: Proposal) -> dict[str, str]:
    """Return the reason for each pattern that is left out of the stream."""
    return {kind.shown: kind.reason for kind in proposal.left_out}


@pytest.mark.parametrize(
    ("name", "content", "format_", "columns"),
    [
        ("a-1.csv", CSV, "csv", {"order_id": "integer", "city": "string", "price": "number"}),
        ("a-1.csv.gz", gzip.compress(CSV, mtime=0), "csv", None),
        ("a-1.jsonl", JSONL, "jsonl", {"id": "integer", "name": "string"}),
        ("a-1.jsonl.zst", zstandard.compress(JSONL), "jsonl", None),
        ("a-1.ndjson.bz2", bz2.compress(JSONL), "jsonl", None),
        ("a-1.json", b'[{"id": 1},\n{"id": 2}]', "json", {"id": "integer"}),
        ("a-1.json", JSONL, "jsonl", None),
        ("a-1.parquet", PARQUET, "parquet", {"id": "integer", "name": "string"}),
        ("a-1", PARQUET, "parquet", None),
        ("a-1.dat", CSV, "csv", None),
        ("a-1.txt", b"id;name\n1;Ada\n", "csv", {"id": "integer", "name": "string"}),
    ],
)
def test_format_and_columns_are_inferred_from_the_files(
    tmp_path: Path, name: str, content: bytes, format_: str, columns: dict[str, str] | None
) -> None:
    proposal = propose_stream(tmp_path, {name: content, name.replace("1", "2"): content})
    assert source_attributes(proposal)["format"] == format_
    assert (proposal.plan.files, proposal.plan.batches, proposal.left_out) == (2, 1, [])
    assert proposal.sample.bad == 0
    if columns is not None:
        assert proposal_json(proposal)["columns"] == columns


def test_stream_is_named_after_the_common_word_of_its_files(tmp_path: Path) -> None:
    """Plain and compressed files belong to one stream."""
    files = {"orders-2026-01-01.csv": CSV, "orders-2026-01-02.csv.gz": gzip.compress(CSV)}
    proposal = propose_stream(tmp_path, files)
    assert proposal.stream.name == "orders"
    assert source_attributes(proposal) == {
        "include": ["orders-*.csv", "orders-*.csv.gz"],
        "format": "csv",
    }
    root = (tmp_path / "project/batches/orders").as_uri()
    assert proposal.stream.storage.root == root


def test_files_of_other_kinds_are_excluded_with_a_reason(tmp_path: Path) -> None:
    files = {
        **{f"orders-{day}.csv": CSV for day in range(3)},
        "customers-1.csv": b"customer,street\n7,Main\n",
        "events-1.jsonl": JSONL,
        "photo.zip": b"PK\x03\x04....",
        "README.md": b"# Orders\n\nThe shop's orders.\n",
        "empty.json": b"",
        "image.raw": b"\x01\0\0\x02",
    }
    proposal = propose_stream(tmp_path, files)
    assert source_attributes(proposal)["include"] == ["orders-*.csv"]
    assert excluded(proposal) == {
        "customers-*.csv": "other columns",
        "events-*.jsonl": "another kind of file",
        "photo*.zip": "is a zip archive (or a spreadsheet), which cannot be read",
        "README*.md": "neither csv nor JSON; convert it to csv",
        "empty*.json": "empty",
        "image*.raw": "contains zero bytes, so it is not text",
    }
    assert (proposal.files_found, proposal.plan.files) == (9, 3)


def test_empty_files_do_not_make_other_files_alike(tmp_path: Path) -> None:
    files = {
        **{f"log-{day}.csv": b"" for day in range(4)},
        **{f"orders-{day}.csv": CSV for day in range(3)},
        "customers-1.csv": b"customer,street\n7,Main\n",
    }
    assert excluded(propose_stream(tmp_path, files))["customers-*.csv"] == "other columns"


def test_files_with_equal_columns_form_one_stream(tmp_path: Path) -> None:
    """Without a common word, the stream is named after its folder."""
    proposal = propose_stream(tmp_path, {f"{city}.csv": CSV for city in ("cork", "lagos", "oslo")})
    assert (proposal.stream.name, source_attributes(proposal)["include"]) == ("exports", ["*.csv"])


def test_files_that_only_match_the_pattern_are_excluded(tmp_path: Path) -> None:
    files = {
        **{f"orders-{day}.csv": CSV for day in range(3)},
        "orders-archived-1.csv": b"who,when\nAda,now\n",
    }
    attributes = source_attributes(propose_stream(tmp_path, files))
    assert attributes["include"] == ["orders-*.csv"]
    assert attributes["exclude"] == ["orders-archived-*.csv"]


def test_include_option_selects_the_files(tmp_path: Path) -> None:
    files = {"orders-1.csv": CSV, "orders-2.csv": CSV, "customers-1.csv": b"customer,x\n7,1\n"}
    proposal = propose_stream(tmp_path, files, include=("customers-*.csv",))
    assert (proposal.stream.name, proposal.plan.files) == ("customers", 1)
    assert source_attributes(proposal)["include"] == ["customers-*.csv"]


def test_include_option_is_kept_if_matching_files_are_left_out(tmp_path: Path) -> None:
    files = {"orders-2026-1.csv": CSV, "orders-2026-2.csv": CSV, "orders-2025-1.csv": CSV}
    files["orders-2026-notes.txt"] = b"# Notes\n\nNone.\n"
    proposal = propose_stream(tmp_path, files, include=("orders-2026*",))
    attributes = source_attributes(proposal)
    assert (attributes["include"], proposal.plan.files) == (["orders-2026*"], 2)
    assert attributes["exclude"] == ["orders-*.txt"]


def test_csv_dialect_and_charset_are_inferred(tmp_path: Path) -> None:
    text = "1;Zoë;4,5\n2;Bo;1\n".encode("cp1252")
    proposal = propose_stream(tmp_path, {"a-1.csv": text})
    assert source_attributes(proposal)["options"] == {
        "delimiter": ";",
        "names": ["column_1", "column_2", "column_3"],
        "charset": "cp1252",
    }
    assert (proposal.sample.records, proposal.sample.bad) == (2, 0)


def test_files_of_two_formats_with_one_ending_get_format_auto(tmp_path: Path) -> None:
    proposal = propose_stream(tmp_path, {"a-1.json": JSONL, "a-2.json": b'[{"id": 3}]'})
    assert (source_attributes(proposal)["format"], proposal.sample.records) == ("auto", 3)


def test_malformed_records_are_reported_and_allowed(tmp_path: Path) -> None:
    """The proposed limit lets the batch pass."""
    proposal = propose_stream(tmp_path, {"a-1.csv": CSV + b"3,Oslo\n"})
    assert proposal.attributes["on_bad_record"] == {"max_bad_ratio": 0.667}
    assert proposal_json(proposal)["first_malformed"]["line"] == 4
    assert "a-1.csv, line 4" in proposal.notes[0]


def test_unreadable_later_file_is_reported(tmp_path: Path) -> None:
    files = {"a-1.csv.gz": gzip.compress(CSV), "a-2.csv.gz": gzip.compress(CSV)[:-9]}
    [note] = propose_stream(tmp_path, files).notes
    assert "a-2.csv.gz: gzip data ends early" in note


def test_landing_inside_the_project_gets_relative_paths(tmp_path: Path) -> None:
    """The part files are stored in a hidden folder, which listings of the landing skip."""
    data = land(tmp_path, {"a-1.csv": CSV})
    proposal = propose(data, str(data), MACHINE)
    assert proposal.attributes["source"]["uri"] == "../.."
    assert proposal.attributes["storage"]["root"] == "../../.batches/a"


@pytest.mark.parametrize("name", ["[x]: #-1.csv", "it's {{ x }} 1.csv", "a\n1.csv", "*-1.csv"])
def test_file_with_special_characters_in_its_name_is_matched(tmp_path: Path, name: str) -> None:
    proposal = propose_stream(tmp_path, {name: b'"a\n: [",x\n1,2\n'}, name="2024-02-30")
    assert (proposal.plan.files, proposal.sample.records) == (1, 1)


@pytest.mark.parametrize("folder", ["with: #1", "{{ x }}", "Zoë's", "a\nb"])
def test_folder_with_special_characters_in_its_name_is_read_back(
    tmp_path: Path, folder: str
) -> None:
    data = land(tmp_path / folder, {"a-1.csv": CSV})
    assert propose_stream(tmp_path, {}, place=str(data)).stream.source.place == data.as_uri()


@pytest.mark.parametrize(
    ("files", "options", "problem"),
    [
        ({}, {}, "there is no file"),
        ({"a.csv": CSV}, {"include": ("*.json",)}, r"there is no file named \*.json"),
        ({"a.csv": b"", "b.csv": b""}, {}, "all files are empty"),
        ({"a.zip": b"PK\x03\x04...."}, {}, "1 a[*].zip: is a zip archive"),
        ({"a.csv": CSV}, {"name": "my sales"}, "--name my sales: is not a valid stream name"),
        ({"1 a.csv": CSV}, {"place": "{data}/1 a.csv"}, "is a file, not .* --include '1 a.csv'"),
        ({"1.csv": CSV}, {"place": "{data}/2"}, "there is no such folder"),
        ({}, {"place": "{data}/" + "x" * 300}, r"cannot be read \(file name too long\)"),
        ({}, {"place": "s3://bucket/\udcff"}, "is not a folder or bucket"),
        ({"1.csv": CSV}, {"place": "ftp://host/a"}, "is not a folder or bucket"),
        ({"a-1.csv": b"id,id\n1,2\n", "a-2.csv": CSV}, {}, "a-1.csv, line 1: header: column 'id'"),
        ({"a-1.csv.gz": gzip.compress(CSV, mtime=0)[:-9]}, {}, "a-1.csv.gz: gzip data ends early"),
        ({"a-1.parquet": b"PA\0\0"}, {}, "a-1.parquet: contains zero bytes"),
    ],
)
def test_folder_without_usable_files_is_rejected_with_a_reason(
    tmp_path: Path, files: dict[str, bytes], options: dict[str, Any], problem: str
) -> None:
    data = tmp_path / "data/exports"
    data.mkdir(parents=True)
    options = {
        key: value.replace("{data}", str(data)) if isinstance(value, str) else value
        for key, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=problem) as caught:
        propose_stream(tmp_path, files, **options)
    assert "Nothing was written. " in str(caught.value)


def test_folder_without_ascii_letters_requires_a_stream_name(tmp_path: Path) -> None:
    land(tmp_path / "受注", {"2026-1.csv": CSV})
    with pytest.raises(ConfigurationError, match="--name"):
        propose(tmp_path / "p", str(tmp_path / "受注"), MACHINE)


@pytest.mark.parametrize(
    ("name", "word", "ending", "full_ending"),
    [
        ("orders-2026-01-24.csv", "orders-", ".csv", ".csv"),
        ("orders-2026-01-24.csv.gz", "orders-", ".csv", ".csv.gz"),
        ("ORDERS_7.CSV.GZ", "ORDERS_", ".csv", ".CSV.GZ"),
        ("customers.jsonl", "customers", ".jsonl", ".jsonl"),
        ("sales_Q1_2026.json", "sales_", ".json", ".json"),
        ("part-00000-4f1c.snappy.parquet", "part-", ".parquet", ".parquet"),
        ("4f1c02aa-77de-11ee-b962.jsonl.zst", "", ".jsonl", ".jsonl.zst"),
        ("export.2026", "export.", "", ""),
        ("dump.gz", "dump", "", ".gz"),
        (".csv", ".csv", "", ""),
        ("a\n1.csv", "", ".csv", ".csv"),
    ],
)
def test_kind_of_file_name(name: str, word: str, ending: str, full_ending: str) -> None:
    kind, found_ending = kind_of(name)
    assert (kind.word, kind.ending, found_ending) == (word, ending, full_ending)


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        ("dpc-covid19-regions-202", "dpc-covid19-regions-"),
        ("orders-2026-01-0", "orders-"),
        ("log_2026_jan_0", "log_"),
        ("part0000", "part"),
        ("sales_Q", "sales_"),
        ("7", ""),
        ("", ""),
    ],
)
def test_common_word_ends_before_a_number(prefix: str, word: str) -> None:
    assert common_word(prefix) == word


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20))
def test_pattern_of_a_kind_matches_its_file(name: str) -> None:
    kind, ending = kind_of(name)
    assert fnmatchcase(name, name_pattern(kind.word, ending))


@settings(max_examples=40)
@given(st.text(max_size=12).map(lambda text: text * 10))
def test_stream_name_of_any_text_is_valid_or_none(text: str) -> None:
    name = stream_name_of(text)
    assert name is None or STREAM_NAME.fullmatch(name)


def test_stream_name_keeps_letters_and_digits() -> None:
    assert stream_name_of("Umsätze 2026 (neu)") == "Ums_tze_2026_neu"
    assert stream_name_of("orders-") == "orders"
    assert stream_name_of("受注") is None
