"""From a folder of files to a stream for them: what is taken, how it is read, what is refused."""

import bz2
import gzip
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.config.stream_proposal import Proposal, proposal_json, propose, text_of
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.planning import Machine
from batch_pipeline.storage.landing import SourceLanding

MACHINE = Machine(cores=2, memory_bytes=8 * 2**30)
CSV = b"order_id,city,price\n1,Cork,9.50\n2,Lagos,12\n"
JSONL = b'{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bo"}\n'


def parquet() -> bytes:
    """Write two records as parquet."""
    target = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "name": ["Ada", "Bo"]}), target)
    return target.getvalue()


def land(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files that have rested."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1_750_000_000, 1_750_000_000))
    return folder


def proposed(tmp_path: Path, files: Mapping[str, bytes], **asked: Any) -> Proposal:
    """Propose a stream for files, in a project beside them.

    Its file must give that stream, and the stream must take the files that the plan counts.
    """
    data = land(tmp_path / "data/exports", files)
    given = {"folder": tmp_path / "project", "place": str(data), **asked}
    proposal = propose(machine=MACHINE, **given)
    path = given["folder"] / "streams" / proposal.stream.name / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text_of(proposal), encoding="utf-8")
    assert read_stream_file(path) == proposal.stream
    taken = list(SourceLanding(stream=proposal.stream, wait=False).found_files())
    assert len(taken) == proposal.plan.files
    return proposal


def source(proposal: Proposal) -> dict[str, Any]:
    """Return what the stream file says of the source, but where it is."""
    return {key: value for key, value in proposal.attributes["source"].items() if key != "uri"}


def left_out(proposal: Proposal) -> dict[str, str]:
    """Return pattern and reason of what is not the stream's."""
    return {one.shown: one.reason for one in proposal.left_out}


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
        ("a-1.parquet", parquet(), "parquet", {"id": "integer", "name": "string"}),
        ("a-1", parquet(), "parquet", None),
        ("a-1", JSONL, "jsonl", None),
        ("a-1.dat", CSV, "csv", None),
        ("a-1.txt", b"id;name\n1;Ada\n", "csv", {"id": "integer", "name": "string"}),
    ],
)
def test_files_are_read_as_what_is_in_them(
    tmp_path: Path, name: str, content: bytes, format_: str, columns: dict[str, str] | None
) -> None:
    """Expect the format by ending and first bytes, and the columns that encoding would find."""
    proposal = proposed(tmp_path, {name: content, name.replace("1", "2"): content})
    assert source(proposal)["format"] == format_
    assert (proposal.plan.files, proposal.plan.batches, proposal.left_out) == (2, 1, [])
    assert proposal.sample.bad == 0
    if columns is not None:
        assert proposal_json(proposal)["columns"] == columns


def test_stream_is_named_after_the_files_and_takes_those_to_come(tmp_path: Path) -> None:
    """Expect the word that all names begin with, and plain and packed files together."""
    files = {"orders-2026-01-01.csv": CSV, "orders-2026-01-02.csv.gz": gzip.compress(CSV)}
    proposal = proposed(tmp_path, files)
    assert proposal.stream.name == "orders"
    assert source(proposal) == {"include": ["orders-*.csv", "orders-*.csv.gz"], "format": "csv"}
    root = (tmp_path / "project/batches/orders").as_uri()
    assert proposal.stream.storage.root == root


def test_word_with_a_number_in_it_names_the_stream(tmp_path: Path) -> None:
    """Expect what all names share, so that another feed beside it is not taken."""
    files = {f"dpc-covid19-regions-2026010{day}.csv": CSV for day in (1, 2)}
    proposal = proposed(tmp_path, files)
    assert proposal.stream.name == "dpc-covid19-regions"
    assert source(proposal)["include"] == ["dpc-covid19-regions-*.csv"]


def test_other_files_are_left_out_and_say_why(tmp_path: Path) -> None:
    """Expect one stream for the commonest kind, and a reason for each other one."""
    files = {
        **{f"orders-{day}.csv": CSV for day in range(3)},
        "customers-1.csv": b"customer,street\n7,Main\n",
        "events-1.jsonl": JSONL,
        "photo.zip": b"PK\x03\x04....",
        "README.md": b"# Orders\n\nThe shop's orders.\n",
        "empty.json": b"",
        "image.raw": b"\x01\0\0\x02",
    }
    proposal = proposed(tmp_path, files)
    assert source(proposal)["include"] == ["orders-*.csv"]
    assert left_out(proposal) == {
        "customers-*.csv": "other columns",
        "events-*.jsonl": "another kind of file",
        "photo*.zip": "is a zip archive (or a spreadsheet), which cannot be read",
        "README*.md": "neither csv nor JSON; convert it to csv",
        "empty*.json": "empty",
        "image*.raw": "holds zero bytes, which no text does",
    }
    assert (proposal.files_found, proposal.plan.files) == (9, 3)


def test_files_with_like_columns_are_one_stream_whatever_their_names(tmp_path: Path) -> None:
    """Expect all csv files, named after their folder."""
    proposal = proposed(tmp_path, {f"{city}.csv": CSV for city in ("cork", "lagos", "oslo")})
    assert (proposal.stream.name, source(proposal)["include"]) == ("exports", ["*.csv"])


def test_pattern_that_would_take_others_leaves_them_out(tmp_path: Path) -> None:
    """Expect files of other columns to be excluded where the stream's pattern matches them."""
    files = {
        **{f"orders-{day}.csv": CSV for day in range(3)},
        "orders-archived-1.csv": b"who,when\nAda,now\n",
    }
    found = source(proposed(tmp_path, files))
    assert (found["include"], found["exclude"]) == (["orders-*.csv"], ["orders-archived-*.csv"])


def test_include_chooses_the_files(tmp_path: Path) -> None:
    """Expect the second kind of file by its pattern."""
    files = {"orders-1.csv": CSV, "orders-2.csv": CSV, "customers-1.csv": b"customer,x\n7,1\n"}
    proposal = proposed(tmp_path, files, include=("customers-*.csv",))
    assert (proposal.stream.name, proposal.plan.files) == ("customers", 1)
    assert source(proposal)["include"] == ["customers-*.csv"]


def test_csv_dialect_and_charset_are_proposed(tmp_path: Path) -> None:
    """Expect what the reader needs to be told, so that no record is malformed."""
    text = "1;Zoë;4,5\n2;Bo;1\n".encode("cp1252")
    proposal = proposed(tmp_path, {"a-1.csv": text})
    assert source(proposal)["options"] == {
        "delimiter": ";",
        "names": ["column_1", "column_2", "column_3"],
        "charset": "cp1252",
    }
    assert (proposal.sample.records, proposal.sample.bad) == (2, 0)


def test_files_of_two_formats_with_one_ending_are_each_looked_into(tmp_path: Path) -> None:
    """Expect no format in the stream file where the first files disagree."""
    proposal = proposed(tmp_path, {"a-1.json": JSONL, "a-2.json": b'[{"id": 3}]'})
    assert (source(proposal)["format"], proposal.sample.records) == ("auto", 3)


def test_malformed_records_are_told_and_allowed_for(tmp_path: Path) -> None:
    """Expect the first one by file and line, and a share that lets the batch go through."""
    proposal = proposed(tmp_path, {"a-1.csv": CSV * 1 + b"3,Oslo\n"})
    assert proposal.attributes["on_bad_record"] == {"max_bad_ratio": 0.667}
    assert proposal_json(proposal)["first_malformed"]["line"] == 4
    assert "a-1.csv, line 4" in proposal.notes[0]


def test_later_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Expect a stream all the same, and the name of the file whose batch will fail."""
    files = {"a-1.csv.gz": gzip.compress(CSV), "a-2.csv.gz": gzip.compress(CSV)[:-9]}
    [note] = proposed(tmp_path, files).notes
    assert "a-2.csv.gz: gzip data ends early" in note


def test_place_in_the_project_is_relative_and_nothing_lands_twice(tmp_path: Path) -> None:
    """Expect a path that moves with the project, and part files where no listing looks."""
    data = land(tmp_path, {"a-1.csv": CSV})
    proposal = propose(data, str(data), MACHINE)
    assert proposal.attributes["source"]["uri"] == "../.."
    assert proposal.attributes["storage"]["root"] == "../../.batches/a"


@pytest.mark.parametrize("name", ["[x]: #-1.csv", "it's {{ x }} 1.csv", "a\n1.csv", "*-1.csv"])
def test_file_with_an_odd_name_is_taken(tmp_path: Path, name: str) -> None:
    """Expect a pattern that takes it, and a stream file that can be read, odd columns or not."""
    proposal = proposed(tmp_path, {name: b'"a\n: [",x\n1,2\n'}, name="odd")
    assert (proposal.plan.files, proposal.sample.records) == (1, 1)


@pytest.mark.parametrize("folder", ["with: #1", "{{ x }}", "Zoë's", "a\nb"])
def test_place_with_an_odd_name_is_found_again(tmp_path: Path, folder: str) -> None:
    """Expect a stream file that names the very folder."""
    data = land(tmp_path / folder, {"a-1.csv": CSV})
    assert proposed(tmp_path, {}, place=str(data)).stream.source.place == data.as_uri()


@pytest.mark.parametrize(
    ("files", "asked", "problem"),
    [
        ({}, {}, "there is no file"),
        ({"a.csv": CSV}, {"include": ("*.json",)}, r"there is no file named \*.json"),
        ({"a.csv": b"", "b.csv": b""}, {}, "all files are empty"),
        ({"a.zip": b"PK\x03\x04...."}, {}, "1 a[*].zip: is a zip archive"),
        ({"a.csv": CSV}, {"name": "my sales"}, "--name my sales: is not a valid stream name"),
        ({"1.csv": CSV, "2.csv": CSV}, {"place": "{data}/1.csv"}, "is a file, not a folder"),
        ({"1.csv": CSV}, {"place": "{data}/2"}, "there is no such folder"),
        ({"1.csv": CSV}, {"place": "ftp://host/a"}, "is not a folder or bucket"),
        ({"a-1.csv": b"id,id\n1,2\n", "a-2.csv": CSV}, {}, "a-1.csv, line 1: header: column 'id'"),
        ({"a-1.csv.gz": gzip.compress(CSV, mtime=0)[:-9]}, {}, "a-1.csv.gz: gzip data ends early"),
        ({"a-1.parquet": b"PA\0\0"}, {}, "a-1.parquet: holds zero bytes"),
    ],
)
def test_place_that_gives_no_stream_says_why(
    tmp_path: Path, files: dict[str, bytes], asked: dict[str, Any], problem: str
) -> None:
    """Expect what was asked, what is wrong with it, and that nothing was written."""
    data = tmp_path / "data/exports"
    data.mkdir(parents=True)
    asked = {
        key: one.replace("{data}", str(data)) if isinstance(one, str) else one
        for key, one in asked.items()
    }
    with pytest.raises(ConfigurationError, match=problem) as caught:
        proposed(tmp_path, files, **asked)
    assert "Nothing was written. " in str(caught.value)


def test_folder_without_a_name_for_a_stream_asks_for_one(tmp_path: Path) -> None:
    """Expect the option to be named where neither files nor folder have letters."""
    land(tmp_path / "受注", {"2026-1.csv": CSV})
    with pytest.raises(ConfigurationError, match="--name"):
        propose(tmp_path / "p", str(tmp_path / "受注"), MACHINE)
