"""The generated pages and parts of pages agree with the code."""

import re
from pathlib import Path

import pytest

from batch_pipeline.cli import COMMANDS
from batch_pipeline_tests.docs.generated_parts import PAGES_WITH_PARTS, PARTS, commands, updated
from batch_pipeline_tests.docs.stream_file_page import (
    PAGE,
    described_default,
    model_default,
    parts,
    text,
)


@pytest.mark.parametrize("page", PAGES_WITH_PARTS, ids=lambda page: page.stem)
def test_generated_part_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == updated(page)


def test_each_part_is_on_one_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES_WITH_PARTS]
    names = [name for text in texts for name in re.findall(r"<!-- generated: (\w+) -->", text)]
    assert sorted(names) == sorted(PARTS)


def test_commands_part_names_every_command() -> None:
    assert set(COMMANDS) <= set(re.findall(r"`(\w+)", commands()))


def test_changed_part_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: metrics -->\n\n- `down`\n\n<!-- end of generated -->\n")
    assert "- `up`: 1 if the inventory could be read" in updated(page)
    assert "`down`" not in updated(page)


def test_stream_file_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()


def test_described_defaults_of_stream_files_are_those_of_the_models() -> None:
    wrong, compared = [], 0
    for part in parts():
        for key, field in part.keys.items():
            described, default = described_default(field), model_default(field)
            if described is not None and default is not None:
                compared += 1
                if described != default:
                    wrong.append(f"{part.path}.{key}: {described}, but {default}")
    assert wrong == []
    assert compared > 20
