"""The components of streams and of their resources, and scaffolding by `dg scaffold defs`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel

from batch_pipeline.config.attribute_types import Location, stream_name
from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.config.stream_file import read_component, stream_of, stream_text
from batch_pipeline.defs.build import shared_definitions, stream_definitions
from batch_pipeline.defs.names import PIPELINE_RESOURCE, SPARK_RESOURCE
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.model.errors import require
from batch_pipeline.model.stream import SourceFormat, Stream, stream_name_of

_PYTHON = """\
import dagster as dg
from batch_pipeline import BatchStream

ATTRIBUTES = {{
    "stream": {stream!r},
    "source": {{"uri": {source[uri]!r}, "format": {source[format]!r}}},
    "storage": {{"root": {storage[root]!r}}},
}}


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> BatchStream:
    return BatchStream.from_attributes_dict(attributes=ATTRIBUTES, context=context)
"""


class StreamChoices(BaseModel):
    """Parameters of scaffolding."""

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
    """Scaffolding of a stream file."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamChoices]:
        """Return the model of the parameters."""
        return StreamChoices

    def scaffold(self, request: dg.ScaffoldRequest[StreamChoices]) -> None:
        """Write `defs.yaml`, or `component.py` for the format `python`."""
        choices, target = request.params, request.target_path
        folder = target.parent if request.append else target
        name = choices.stream or stream_name_of(folder.name) or "stream"
        attributes: dict[str, Any] = {
            "stream": name,
            "source": {"uri": choices.source_uri, "format": choices.source_format.value},
            "storage": {"root": _storage_root(request.project_root, folder, name)},
        }
        if request.scaffold_format == "python":
            python = _PYTHON.format(**attributes)
            (folder / "component.py").write_text(python, encoding="utf-8")
            return
        text = stream_text(request.type_name, attributes)
        if request.append:
            with target.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (folder / "defs.yaml").write_text(text, encoding="utf-8")


def _storage_root(project: Path | None, folder: Path, stream: str) -> str:
    """Return a storage root outside of the project's Python package."""
    if project is None or not folder.absolute().is_relative_to(project.absolute()):
        return "./batches"
    return Path(os.path.relpath(project / "batches" / stream, folder)).as_posix()


_VARIABLE = re.compile(r"\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_FILES = ("defs.yaml", "defs.yml", "component.yaml")  # in Dagster's order
_EXAMPLE = {
    "stream": "orders",
    "source": {"uri": "./landing", "include": ["orders-*.csv"], "format": "csv"},
    "batch": {"max_weight": "64MiB", "max_count": 100},
    "key_properties": ["order_id"],
}


class UncheckedAttributes(RootModel[dict[str, Any]]):
    """The attributes as the file has them, with the schema of `StreamAttributes` for Dagster.

    They are validated when the stream is built: after templates are resolved, and with messages
    that name file and line.
    """

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of `StreamAttributes` with an example for Dagster's pages."""
        return StreamAttributes.model_json_schema(*args, **kwargs) | {"examples": [_EXAMPLE]}


@dg.scaffold_with(StreamScaffolder)
class BatchStream(dg.Component, dg.Resolvable):
    """Files of a folder, a bucket or a table as partitions of bounded size.

    Each file is processed exactly once; each batch of files is a partition with a manifest. The
    first stream of a project also defines what its streams share.
    """

    def __init__(self, stream: Stream) -> None:
        """Create the component of a stream."""
        self.stream = stream

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return its tags."""
        return dg.ComponentTypeSpec(tags=["ingestion", "spark", "singer"])

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model with which Dagster reads the attributes."""
        return UncheckedAttributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> "BatchStream":
        """Build the component from its file; errors name the line.

        Raises:
            StreamFileError: the attributes are not valid.
            ConfigurationError: they are not valid, and not from a file.
        """
        number = context.component_path.instance_key  # of the document in its file
        files = (context.path / name for name in _FILES)
        path = next((file for file in files if file.exists()), None)
        if path is None or not isinstance(number, int):
            given = attributes.model_dump() if attributes is not None else {}
            return cls.from_attributes_dict(attributes=given, context=context)

        def fill(values: Any) -> Any:
            # Errors name the position below `attributes`.
            return context.resolution_context.resolve_value({"attributes": values})["attributes"]

        return cls(read_component(path, number=number, fill=fill))

    @classmethod
    def from_attributes_dict(
        cls, *, attributes: Mapping[str, Any], context: dg.ComponentLoadContext | None = None
    ) -> "BatchStream":
        """Build the component in Python; relative paths start at the folder of its module.

        Raises:
            ConfigurationError: the attributes are not valid.
        """
        base = Path.cwd() if context is None else context.path
        return cls(stream_of(attributes, base if base.is_dir() else base.parent))

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "BatchStream":
        """Build the component from attributes within those of another component.

        Raises:
            ConfigurationError: the attributes are not valid.
        """
        return cls.from_attributes_dict(attributes=context.resolve_value(model.model_dump()))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the stream; with the first one, those that streams share.

        Raises:
            InvalidValueError: two streams have the same name, or differ only in `-`, `.` and `_`.
        """
        own = stream_definitions(self.stream)
        components = _components(context, BatchStream) or [self]
        if components[0] is not self:
            return own
        shared = [shared_definitions([component.stream for component in components])]
        if not _components(context, BatchResources):
            shared.append(BatchResources().build_defs(context))
        return dg.Definitions.merge(*shared, own)


def _resolve_setting(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Return a variable as `EnvVar`, so that Dagster hides its value and reads it in each run."""
    variable = _VARIABLE.fullmatch(value or "")
    return dg.EnvVar(variable[1]) if variable else context.resolve_value(value, as_type=str)


def _setting(description: str) -> dg.Resolver:
    return dg.Resolver(
        _resolve_setting,
        model_field_type=str | None,
        description=description,
        inject_before_resolve=False,
    )


@dataclass(kw_only=True)
class BatchResources(dg.Component, dg.Resolvable):
    """Inventory and Spark session of all streams of a project, in place of the environment's.

    A template that is one variable, as `{{ env.NAME }}`, is read when a run starts.
    """

    inventory_conn: Annotated[str | None, _setting("Postgres URL of the inventory.")] = None
    home: Annotated[str | None, _setting("Folder of logs and of the embedded server.")] = None
    spark_master: Annotated[str | None, _setting("Spark master, for example local[2].")] = None
    spark_remote: Annotated[str | None, _setting("Spark Connect URL.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the two resources.

        Raises:
            InvalidValueError: the project has several of these components.
        """
        count = len(_components(context, BatchResources))
        require(count <= 1, "number of BatchResources components", count, "at most one")
        return dg.Definitions(
            resources={
                PIPELINE_RESOURCE: PipelineResource(
                    inventory_conn=self.inventory_conn, home=self.home
                ),
                SPARK_RESOURCE: SparkResource(master=self.spark_master, remote=self.spark_remote),
            }
        )


_Component = TypeVar("_Component", bound=dg.Component)


def _components(context: dg.ComponentLoadContext, kind: type[_Component]) -> list[_Component]:
    """Return the components of a type in the project; none outside of a project."""
    tree = context.component_tree
    is_project = not isinstance(tree, type(dg.ComponentTree.for_test()))
    return tree.get_all_components(kind) if is_project else []
