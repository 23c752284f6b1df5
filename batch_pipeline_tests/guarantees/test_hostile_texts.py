"""Untrusted texts in file names, HTML pages, terminals and states are shown, not interpreted."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from batch_pipeline.cli import console
from batch_pipeline.cli.target import scaffold
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.model.backfill import check_backfill_name, parse_backfill_key
from batch_pipeline.model.batch import parse_partition_key
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import STREAM_NAME, Storage
from batch_pipeline.singer.messages import parse_bookmark, parse_bookmarks
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline_tests.factories import manifest, part_file, stream
from batch_pipeline_tests.guarantees.inputs.hostile import TEXTS, is_text
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def accepted(check: Callable[[str], Any]) -> list[str]:
    """Return the texts that a check accepts. The others must raise `InvalidValueError`."""
    names = []
    for text in TEXTS:
        try:
            check(text)
        except InvalidValueError:
            continue
        names.append(text)
    return names


@pytest.mark.parametrize(
    "check",
    [
        lambda text: stream(name=text),
        lambda text: Storage(root="file:///batches", prefix=text),
        check_backfill_name,
    ],
    ids=["stream", "prefix", "backfill"],
)
def test_names_used_in_file_names_are_safe(check: Callable[[str], Any], figures: Figures) -> None:
    names = accepted(check)
    assert 10 < len(names) < 50
    assert [text for text in names if text and not SAFE_NAME.fullmatch(text)] == []
    figures(hostile_texts=len(TEXTS))


def test_stream_names_of_taps_become_distinct_safe_names(figures: Figures) -> None:
    names = [stream_name(text) for text in TEXTS]
    assert [name for name in names if not STREAM_NAME.fullmatch(name)] == []
    assert len(set(names)) == len(TEXTS)
    figures(hostile_texts=len(TEXTS))


@pytest.mark.parametrize(
    "parse", [parse_partition_key, parse_backfill_key], ids=["batch", "backfill"]
)
@pytest.mark.parametrize("form", ["{}", "00000001-00000003{}", "past:00000001-{}"])
def test_hostile_partition_keys_are_refused(
    parse: Callable[[str], Any], form: str, figures: Figures
) -> None:
    assert accepted(lambda text: parse(form.format(text))) == []
    figures(hostile_texts=len(TEXTS))


def test_hostile_states_are_refused(figures: Figures) -> None:
    for text in TEXTS:
        for state in (text, {"publish_number": text}, {"publish_number": 1, "other_jobs": text}):
            with pytest.raises(ConfigurationError, match=r"state\.json: "):
                parse_bookmark(state, "orders", path="state.json")
        with pytest.raises(ConfigurationError, match=r"state\.json: "):
            parse_bookmarks({"bookmarks": text}, path="state.json")
        bookmark = parse_bookmark({"publish_number": 7, "job": text}, "orders", path="state.json")
        assert bookmark.numbers == {text: 7}
    figures(hostile_texts=5 * len(TEXTS))


def test_stream_file_for_hostile_tap_names_reads_back(tmp_path: Path, figures: Figures) -> None:
    """Names with template syntax are refused, because Dagster would render them."""
    refused, texts = [], [text for text in TEXTS if is_text(text)]
    for text in texts:
        announced = AnnouncedStream(name=text, schema={}, key_properties=("id", text))
        name = stream_name(text)
        try:
            stream_file, _ = scaffold(announced, name, f"file:///landing/{name}")
        except ConfigurationError:
            refused.append(text)
            continue
        path = tmp_path / "orders" / "defs.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(stream_file, encoding="utf-8")
        parsed = read_stream_file(path)
        assert (parsed.name, parsed.key_properties) == (name, ("id", text))
        assert yaml.safe_load(stream_file)["attributes"]["stream"] == name
    assert refused == [text for text in texts if re.search(r"\{[{%#]", text)]
    figures(hostile_texts=2 * len(texts))


@pytest.mark.parametrize("show", ["say", "head", "print_error", "note"])
def test_console_output_has_no_control_characters(
    capsys: pytest.CaptureFixture[str], show: str, figures: Figures
) -> None:
    for text in TEXTS:
        getattr(console, show)(f"orders: {text}.")
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert CONTROL.search(printed) is None
    assert "\\u001b[2J" in printed
    assert "[bold red]a[/]" in printed
    figures(hostile_texts=len(TEXTS))


def test_json_output_preserves_every_text(
    capsys: pytest.CaptureFixture[str], figures: Figures
) -> None:
    console.print_json({"texts": TEXTS})
    printed = capsys.readouterr().out
    assert CONTROL.search(printed) is None
    assert json.loads(printed)["texts"] == list(TEXTS)
    figures(hostile_texts=len(TEXTS))


def test_dagster_metadata_has_no_markdown(figures: Figures) -> None:
    texts = [text for text in TEXTS if is_text(text)]
    for text in texts:
        part = part_file(uri=to_uri(f"/batches/{text}"))
        batch_manifest = manifest(part_files=(part,), key_properties=(text,))
        metadata = batch_metadata(batch_manifest, "file:///batches/manifest.json", 1.0)
        event = dg.AssetMaterialization("batches", metadata=metadata)
        assert part.uri.rpartition("/")[2] in str(event.metadata["part_files"])
        assert not any(
            isinstance(value, dg.MarkdownMetadataValue) for value in event.metadata.values()
        )
    figures(hostile_texts=2 * len(texts))
