"""The reference page of stream files, generated from the models that read them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin

from pydantic.fields import FieldInfo

import batch_pipeline
from batch_pipeline.config.attribute_types import Section
from batch_pipeline.config.stream_attributes import MappingAttributes, StreamAttributes
from batch_pipeline_tests.docs.stream_file_sections import EXAMPLES, HEAD, SEE, TITLES
from batch_pipeline_tests.docs.stream_file_types import (
    described_default,
    meaning,
    model_default,
    section_in,
    type_words,
)

PAGE = Path(batch_pipeline.__file__).parent / "docs/reference/stream_file.md"
MAPPING = "mapping"  # the path of keys that are shown in a separate part


@dataclass(frozen=True, slots=True)
class Part:
    """A section of stream files: its path and its model."""

    path: str
    model: type[Section]

    @property
    def title(self) -> str:
        """The heading of the part."""
        return TITLES.get(self.path, f"`{self.path}`")

    @property
    def keys(self) -> dict[str, FieldInfo]:
        """The fields by their keys in the file."""
        elsewhere = MappingAttributes.model_fields if self.path == "" else {}
        return {
            field.alias or name: field
            for name, field in self.model.model_fields.items()
            if name not in elsewhere
        }

    def place(self, key: str) -> str:
        """Return the path of a key of the part."""
        return key if self.path in {"", MAPPING} else f"{self.path}.{key}"


def parts() -> list[Part]:
    """Return all sections, each before its subsections."""
    top = Part("", StreamAttributes)
    return [top, *_parts_in(top), Part(MAPPING, MappingAttributes)]


def text() -> str:
    """Return the text of the page."""
    return "\n\n".join([HEAD.strip(), *map(_part, parts())]) + "\n"


def _parts_in(outer: Part) -> Iterator[Part]:
    for key, field in outer.keys.items():
        model = section_in(field.annotation)
        if model is not None:
            name = ".NAME" if get_origin(field.annotation) is dict else ""
            inner = Part(f"{outer.place(key)}{name}", model)
            yield inner
            yield from _parts_in(inner)


def _part(part: Part) -> str:
    level = "##" if "." not in part.path.removesuffix(".NAME") else "###"
    entries = [_entry(part, key, field) for key, field in part.keys.items()]
    keys = "\n".join(entries)
    example = [f"```yaml\n{EXAMPLES[part.path].strip()}\n```"] if part.path in EXAMPLES else []
    see = [SEE[part.path]] if part.path in SEE else []
    return "\n\n".join([f"{level} {part.title}", *see, keys, *example])


def _entry(part: Part, key: str, field: FieldInfo) -> str:
    kind = "; ".join(filter(None, [type_words(field, part.place(key)), _default(field)]))
    return f"- `{key}` ({kind}): {meaning(field)}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    text = model_default(field)
    if text is not None:
        return f"default `{text}`"
    default = described_default(field)
    return "" if default is None or default == "none" else f"default {default}"
