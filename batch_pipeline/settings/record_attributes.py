"""The keys of a stream file that say how records are judged, mapped and marked."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    Evolution,
    LineageColumn,
    OnBadFile,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.model.schema import schema_of
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import Count, Size, Text, refusal

_SDC = tuple(column for column in LineageColumn if column.value.startswith("_sdc_"))


class SchemaAttributes(Section):
    """The columns of the records, and how they may change."""

    mode: Literal["infer", "declared"] | None = Field(
        None,
        description="infer: from the records; declared: by `file` (default: declared where `file` "
        "is given, else infer).",
    )
    file: Text | None = Field(
        None, description="JSON Schema of a record: a path, relative to the stream file."
    )
    evolution: Evolution = Field(
        Evolution.ADD,
        description="When records do not fit the schema: add columns and widen types, fail the "
        "batch, or rescue what does not fit into the column `_rescued_data` (default add).",
    )
    sample_records: Count | None = Field(
        None, description="Records that one task reads to infer columns (default: all)."
    )

    def check(self) -> None:
        if self.mode == "declared" and self.file is None:
            raise refusal("is missing; expected the path of a JSON Schema", key="schema.file")
        if self.mode == "infer" and self.file is not None:
            raise refusal("is infer; expected declared beside `schema.file`", key="schema.mode")

    def declared_json(self, base: Path) -> Any:
        """Read the schema file; None where there is none.

        Raises:
            InvalidValueError: it cannot be read.
        """
        return None if self.file is None else _json(base / self.file)

    def to_domain(self, declared_json: Any) -> SchemaRules:
        """Give the domain's form; `declared_json` is what the schema file holds.

        Raises:
            InvalidValueError: it says what no column can be.
        """
        declared = None if self.file is None else schema_of(declared_json)
        return SchemaRules(
            declared=declared, evolution=self.evolution, sample_records=self.sample_records
        )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidValueError("schema.file", str(path), f"a JSON Schema ({reason})") from error


class OnBadRecordAttributes(Section):
    """How many malformed records are set aside in a quarantine file before the batch fails."""

    max_bad_records: int | None = Field(
        None,
        strict=True,
        ge=0,
        description="Malformed records of a batch, at most (default: 0, or any number where "
        "`max_bad_ratio` is given).",
    )
    max_bad_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of malformed records among all of the batch, at most.",
    )

    def to_domain(self) -> BadRecordRules:
        """Give the domain's form."""
        return BadRecordRules(
            max_bad_records=self.max_bad_records, max_bad_ratio=self.max_bad_ratio
        )


class OnBadFileAttributes(Section):
    """What to do with each kind of bad file: fail, skip or quarantine."""

    missing: OnBadFile = Field(OnBadFile.FAIL, description="A file that is not there any more.")
    changed: OnBadFile = Field(OnBadFile.FAIL, description="A file other than the one registered.")
    corrupt: OnBadFile = Field(OnBadFile.FAIL, description="A file that cannot be read.")

    def to_domain(self) -> BadFileRules:
        """Give the domain's form."""
        return BadFileRules(missing=self.missing, changed=self.changed, corrupt=self.corrupt)


def _for_all_kinds(value: Any) -> Any:
    if isinstance(value, str):
        return {"missing": value, "changed": value, "corrupt": value}
    return value


OnBadFileValue = Annotated[
    OnBadFileAttributes,
    BeforeValidator(_for_all_kinds, json_schema_input_type=OnBadFile | OnBadFileAttributes),
]


def _lineage(value: Any) -> Any:
    """Read `true` as the columns that Singer targets expect."""
    if isinstance(value, bool):
        return _SDC if value else ()
    return value


LineageValue = Annotated[
    tuple[LineageColumn, ...],
    BeforeValidator(_lineage, json_schema_input_type=bool | tuple[LineageColumn, ...]),
]


class ReadLimitAttributes(Section):
    """What a task is willing to read."""

    max_record_bytes: Annotated[Size, Field(ge=1)] = Field(
        64 * 2**20,
        description="Length of a record, at most (bytes, or with a unit; default 64MiB).",
    )
    max_expansion: Count = Field(
        250,
        description="How many times larger a compressed file may become, looked at from 64MiB on "
        "(default 250).",
    )
    max_columns: Count = Field(10_000, description="Columns of a record, at most (default 10000).")

    def to_domain(self) -> ReadLimits:
        """Give the domain's form."""
        return ReadLimits(
            max_record_bytes=self.max_record_bytes,
            max_expansion=self.max_expansion,
            max_columns=self.max_columns,
        )


class MappingAttributes(Section):
    """Selection, stream maps and flattening, with the names and meanings of the Singer SDK."""

    select: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        ("*",),
        description="Patterns of properties; `!` in front deselects, the last match decides.",
    )
    stream_maps: dict[str, Any] = Field(
        {}, description="The Singer SDK's stream maps, by stream (default: none)."
    )
    stream_map_config: dict[str, Any] = Field(
        {}, description="What expressions of stream maps see as `config` (default: none)."
    )
    flattening_enabled: bool = Field(
        default=False, description="Flatten nested objects (default false)."
    )
    flattening_max_depth: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        None, description="Levels to flatten, at most (default: all)."
    )
    flattening_separator: Text = Field("__", description="Between the names of levels.")

    def mapping(self) -> RecordMapping:
        """Give the domain's form."""
        return RecordMapping(
            stream_maps=self.stream_maps,
            stream_map_config=self.stream_map_config,
            flattening_enabled=self.flattening_enabled,
            flattening_max_depth=self.flattening_max_depth,
            flattening_separator=self.flattening_separator,
            select=self.select,
        )
