"""How the schema of a stream may change while a batch is encoded: the stream file's rules."""

from collections.abc import Sequence
from dataclasses import replace

from batch_pipeline.model.errors import BatchDataError, repair_step
from batch_pipeline.model.record_rules import RESCUED, Evolution
from batch_pipeline.model.schema import Column, ColumnType, Misfit, RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.ports import Schemas


def known_schema(schemas: Schemas, stream: Stream) -> tuple[int, RecordSchema]:
    """Give the newest schema, with what is declared and what the stream file adds to all records.

    Raises:
        ConfigurationError: the declaration narrows or contradicts what is there.
    """
    declared = stream.schema.declared
    if declared is None or stream.transform is not None:  # then it is what the transform is given
        version, schema = schemas.latest(stream.name)
    else:
        version, schema = schemas.declare(stream.name, declared)
    added = _added(stream)
    if {*added} <= {*schema.columns}:
        return version, schema
    return schemas.widen(stream.name, added, text_source=False)


def evolution_of(stream: Stream, schema: RecordSchema) -> Evolution:
    """Give the rule that holds for a batch: the first one with columns always adds them.

    Unless columns are declared, there is nothing yet that its records could fail to fit.
    """
    added = {column.name for column in _added(stream)}
    if stream.schema.declared is None and added.issuperset(schema.names):
        return Evolution.ADD
    return stream.schema.evolution


def for_look(stream: Stream, evolution: Evolution, look: int) -> Stream:
    """Give the stream as the encoder takes it; only the first look keeps to a sample."""
    sample = stream.schema.sample_records if look == 0 else None
    rules = replace(stream.schema, evolution=evolution, sample_records=sample)
    return replace(stream, schema=rules)


def check_evolution(
    stream: Stream,
    evolution: Evolution,
    misfits: Sequence[Misfit],
    known: tuple[int, RecordSchema],
) -> None:
    """Check that the schema may change; a column of nothing but nulls always takes a type.

    Raises:
        BatchDataError: it may not.
    """
    if evolution is not Evolution.FAIL:
        return
    version, columns = known[0], known[1].by_name()
    refused = [misfit for misfit in misfits if not _is_open(columns.get(misfit.column.name))]
    if not refused:
        return
    first = refused[0]
    column = columns.get(first.column.name)
    place = first.location if first.line is None else f"{first.location}, line {first.line}"
    held = "has no such column" if column is None else f"has {column.type_text}"
    others = len(refused) - 1
    more = f" (more columns that do not fit: {others})" if others else ""
    raise BatchDataError(
        f"{stream.name}: {place}: column {first.column.name} holds {first.seen}, schema version "
        f"{version} {held}{more}; `schema.evolution` is `fail`, so nothing of this batch was "
        f"published. {repair_step(stream.name, is_registered=stream.user_table is None)}, declare "
        f"the column wide enough, or set `evolution: add` or `rescue`; then run again."
    )


def _added(stream: Stream) -> list[Column]:
    added = [lineage.column for lineage in stream.lineage]
    if stream.schema.evolution is Evolution.RESCUE:
        added.append(Column(name=RESCUED, type=ColumnType.STRING))
    return added


def _is_open(column: Column | None) -> bool:
    return column is not None and column.type is ColumnType.UNKNOWN
