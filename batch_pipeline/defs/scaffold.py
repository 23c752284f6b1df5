"""What `dg scaffold defs batch_pipeline.BatchStream` writes: a file that says what to change."""

import os
from pathlib import Path
from typing import Annotated

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from batch_pipeline.config.attribute_types import Location, stream_name
from batch_pipeline.config.stream_text import stream_text
from batch_pipeline.model.stream import SourceFormat, stream_name_of

_PYTHON = """\
import dagster as dg
from batch_pipeline import BatchStream

ATTRIBUTES = {{
    "stream": {stream!r},
    "source": {{"uri": {uri!r}, "format": {format!r}}},
    "storage": {{"root": {root!r}}},
}}


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> BatchStream:
    return BatchStream.from_attributes_dict(attributes=ATTRIBUTES, context=context)
"""


class StreamChoices(BaseModel):
    """What may be chosen when a stream is scaffolded."""

    model_config = ConfigDict(extra="forbid")

    stream: Annotated[str, AfterValidator(stream_name)] | None = Field(
        None, description="Name of the stream (default: that of the folder)."
    )
    source_uri: Location = Field(
        "./landing",
        description="Folder where files land: a path, relative to the new file, or file:///…",
    )
    source_format: SourceFormat = Field(
        SourceFormat.AUTO, description="csv, jsonl, json, parquet, avro or auto."
    )


class StreamScaffolder(dg.Scaffolder[StreamChoices]):
    """Writes the file of a new stream."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamChoices]:
        """Give the choices."""
        return StreamChoices

    def scaffold(self, request: dg.ScaffoldRequest[StreamChoices]) -> None:
        """Write `defs.yaml`, or `component.py` where Python is asked for."""
        choices, target = request.params, request.target_path
        folder = target.parent if request.append else target
        name = choices.stream or _name_of(folder)
        words = {
            "stream": name,
            "uri": choices.source_uri,
            "format": choices.source_format.value,
            "root": _storage_root(request.project_root, folder, name),
        }
        if request.scaffold_format == "python":
            text = _PYTHON.format(**words)
            (folder / "component.py").write_text(text, encoding="utf-8")
            return
        source = {"uri": choices.source_uri, "format": choices.source_format.value}
        attributes = {"stream": name, "source": source, "storage": {"root": words["root"]}}
        text = stream_text(request.type_name, attributes)
        if request.append:
            with target.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (folder / "defs.yaml").write_text(text, encoding="utf-8")


def _name_of(folder: Path) -> str:
    return stream_name_of(folder.name) or "stream"


def _storage_root(project: Path | None, folder: Path, stream: str) -> str:
    """Keep what is encoded out of the project's Python package."""
    if project is None or not folder.absolute().is_relative_to(project.absolute()):
        return "./batches"
    return Path(os.path.relpath(project / "batches" / stream, folder)).as_posix()
