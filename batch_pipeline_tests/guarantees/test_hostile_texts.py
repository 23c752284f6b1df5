"""Texts of others in names of files, in pages, on terminals and in states are shown, not obeyed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from batch_pipeline.cli import console
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.model.backfill import check_backfill_name, parse_backfill_key
from batch_pipeline.model.batch import parse_partition_key
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import STREAM_NAME, Storage
from batch_pipeline.singer.bookmarks import parse_bookmark, parse_bookmarks
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline.singer.target.sink import scaffold
from batch_pipeline_tests.factories import manifest, part_file, stream
from batch_pipeline_tests.guarantees.inputs.hostile import TEXTS, is_text
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def taken(check: Callable[[str], Any]) -> list[str]:
    """Return the texts that a check lets through; the others are refused as a wrong value."""
    found = []
    for text in TEXTS:
        try:
            check(text)
        except InvalidValueError:
            continue
        found.append(text)
    return found


@pytest.mark.parametrize(
    "check",
    [
        lambda text: stream(name=text),
        lambda text: Storage(root="file:///batches", prefix=text),
        check_backfill_name,
    ],
    ids=["stream", "prefix", "backfill"],
)
def test_names_that_become_parts_of_file_names_are_safe_ones(
    check: Callable[[str], Any], figures: Figures
) -> None:
    found = taken(check)
    assert 10 < len(found) < 50
    assert [text for text in found if text and not SAFE.fullmatch(text)] == []
    figures(hostile_texts=len(TEXTS))


def test_names_of_taps_become_safe_names_of_their_own(figures: Figures) -> None:
    names = [stream_name(text) for text in TEXTS]
    assert [name for name in names if not STREAM_NAME.fullmatch(name)] == []
    assert len(set(names)) == len(TEXTS)
    figures(hostile_texts=len(TEXTS))


@pytest.mark.parametrize("parse", [parse_partition_key, parse_backfill_key], ids=["own", "past"])
@pytest.mark.parametrize("form", ["{}", "00000001-00000003{}", "past:00000001-{}"])
def test_partition_keys_are_keys_or_refused(
    parse: Callable[[str], Any], form: str, figures: Figures
) -> None:
    assert taken(lambda text: parse(form.format(text))) == []
    figures(hostile_texts=len(TEXTS))


def test_states_of_taps_are_numbers_or_refused(figures: Figures) -> None:
    for text in TEXTS:
        for written in (text, {"publish_number": text}, {"publish_number": 1, "other_jobs": text}):
            with pytest.raises(ConfigurationError, match=r"state\.json: "):
                parse_bookmark(written, "orders", path="state.json")
        with pytest.raises(ConfigurationError, match=r"state\.json: "):
            parse_bookmarks({"bookmarks": text}, path="state.json")
        read = parse_bookmark({"publish_number": 7, "job": text}, "orders", path="state.json")
        assert read.numbers == {text: 7}
    figures(hostile_texts=5 * len(TEXTS))


def test_stream_files_that_a_tap_brings_about_say_what_it_said(
    tmp_path: Path, figures: Figures
) -> None:
    """Templates are refused, because a Dagster project would execute them."""
    refused, texts = [], [text for text in TEXTS if is_text(text)]
    for text in texts:
        announced = AnnouncedStream(name=text, schema={}, key_properties=("id", text))
        name = stream_name(text)
        try:
            made = scaffold(announced, name, f"file:///landing/{name}")
        except ConfigurationError:
            refused.append(text)
            continue
        path = tmp_path / "orders" / "defs.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(made.stream_file, encoding="utf-8")
        read = read_stream_file(path)
        assert (read.name, read.key_properties) == (name, ("id", text))
        assert yaml.safe_load(made.stream_file)["attributes"]["stream"] == name
    assert refused == [text for text in texts if re.search(r"\{[{%#]", text)]
    figures(hostile_texts=2 * len(texts))


@pytest.mark.parametrize("show", ["say", "head", "print_error", "note"])
def test_terminals_are_told_nothing_that_they_obey(
    capsys: pytest.CaptureFixture[str], show: str, figures: Figures
) -> None:
    for text in TEXTS:
        getattr(console, show)(f"orders: {text}.")
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert OBEYED.search(printed) is None
    assert "\\u001b[2J" in printed
    assert "[bold red]a[/]" in printed
    figures(hostile_texts=len(TEXTS))


def test_programs_are_told_every_text_as_it_is(
    capsys: pytest.CaptureFixture[str], figures: Figures
) -> None:
    console.print_json({"texts": TEXTS})
    printed = capsys.readouterr().out
    assert OBEYED.search(printed) is None
    assert json.loads(printed)["texts"] == list(TEXTS)
    figures(hostile_texts=len(TEXTS))


def test_pages_of_dagster_show_texts_inside_of_code(figures: Figures) -> None:
    texts = [text for text in TEXTS if is_text(text)]
    for text in texts:
        part = part_file(uri=to_uri(f"/batches/{text}"))
        one = manifest(part_files=(part,), key_properties=(text,))
        metadata = batch_metadata(one, "file:///batches/manifest.json", 1.0)
        event = dg.AssetMaterialization("batches", metadata=metadata)
        assert part.uri.rpartition("/")[2] in str(event.metadata["part_files"])
        assert not any(
            isinstance(value, dg.MarkdownMetadataValue) for value in event.metadata.values()
        )
    figures(hostile_texts=2 * len(texts))
