"""What `dg scaffold defs batch_pipeline.BatchStream` writes: a file that says what to change."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.core.component_tree import TestComponentTree
from dagster.components.core.context import ComponentDeclLoadContext
from dagster.components.core.decl import YamlDecl
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel

from batch_pipeline.config.attribute_types import Location, stream_name
from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.config.stream_file import read_component, stream_of, stream_text
from batch_pipeline.defs.build import shared_definitions, stream_definitions
from batch_pipeline.model.stream import SourceFormat, Stream, stream_name_of

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
        """Return the model of the parameters."""
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


_EXAMPLE = {
    "stream": "orders",
    "source": {"uri": "./landing", "include": ["orders-*.csv"], "format": "csv"},
    "batch": {"max_weight": "64MiB", "max_count": 100},
    "key_properties": ["order_id"],
}


class UncheckedAttributes(RootModel[dict[str, Any]]):
    """The attributes as they stand in the file.

    To Dagster's tools they have the schema of `StreamAttributes`. They are checked when the stream
    is made, because templates are filled in by then, and in our own words.
    """

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of `StreamAttributes`, with an example for Dagster's pages."""
        return StreamAttributes.model_json_schema(*args, **kwargs) | {"examples": [_EXAMPLE]}


@dg.scaffold_with(StreamScaffolder)
class BatchStream(dg.Component, dg.Resolvable):
    """Files that land in a folder, or that a table of yours lists, as partitions of bounded weight.

    Each file is encoded exactly once; each batch of files is a partition whose materialization has
    a BATCH manifest. The first stream of a project brings what all of them share.
    """

    def __init__(self, stream: Stream) -> None:
        """Keep the stream that the component defines."""
        self.stream = stream

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what the component produces."""
        return dg.ComponentTypeSpec(
            tags=["ingestion", "spark", "singer"],
            produces=["asset", "job", "sensor", "resource"],
        )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model by which Dagster reads the attributes."""
        return UncheckedAttributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> "BatchStream":
        """Read the component from its file; errors name the line.

        Raises:
            StreamFileError: the attributes cannot be used.
            ConfigurationError: the same, where they come from no file.
        """
        decl = context.component_decl
        if not isinstance(decl, YamlDecl) or decl.source_tree is None:
            given = attributes.model_dump() if attributes is not None else {}
            return cls.from_attributes_dict(attributes=given, context=context)
        number = getattr(decl.loc, "instance_key", None)
        path = Path(decl.source_tree.source_position_tree.position.filename)
        resolution = context.resolution_context.at_path("attributes")
        stream = read_component(
            path,
            number=number if isinstance(number, int) else 0,
            fill=resolution.resolve_value,
        )
        return cls(stream)

    @classmethod
    def from_attributes_dict(
        cls, *, attributes: Mapping[str, Any], context: ComponentDeclLoadContext | None = None
    ) -> "BatchStream":
        """Make the component in Python; relative paths start at the folder of its module.

        Raises:
            ConfigurationError: the attributes cannot be used.
        """
        base = Path.cwd() if context is None else context.path
        return cls(stream_of(attributes, base if base.is_dir() else base.parent))

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "BatchStream":
        """Make the component of attributes inside of another one's.

        Raises:
            ConfigurationError: the attributes cannot be used.
        """
        return cls.from_attributes_dict(attributes=context.resolve_value(model.model_dump()))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the stream, and with the first one those that all share.

        Raises:
            InvalidValueError: two streams of the project have the same name.
        """
        own = stream_definitions(self.stream)
        every = self._every(context)
        if every[0] is not self:
            return own
        return dg.Definitions.merge(shared_definitions([one.stream for one in every]), own)

    def _every(self, context: dg.ComponentLoadContext) -> "list[BatchStream]":
        """Find all streams of the project; this one alone where there is no project."""
        tree = context.component_tree
        if isinstance(tree, TestComponentTree):
            return [self]
        return tree.get_all_components(BatchStream) or [self]
