"""Looking whether an inventory and a meta table can be worked with; nothing is changed.

What is found is said in whole sentences; who asks decides what becomes of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.finding import Finding, Level
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, highest_planned
from batch_pipeline.inventory.meta.ceilings.ceiling import describe
from batch_pipeline.inventory.meta.filter_cost import filter_cost
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.server.engine import location, transaction
from batch_pipeline.inventory.tables import SCHEMA, job, metadata
from batch_pipeline.inventory.upkeep.migrate import check_revision


def check_inventory(inventory: sa.Engine, *, is_own: bool) -> Iterator[Finding]:
    """Look at the inventory: server, revision of the schema, and the rights of this login.

    An inventory of our own server (`is_own`) is brought up to date by whoever opens it next.

    Raises:
        DatabaseUnreachableError: the server went away.
    """
    subject = "inventory"
    with transaction(inventory) as connection:
        version = connection.execute(sa.text("SHOW server_version")).scalar_one()
    text = f"PostgreSQL {version} at {location(inventory)}."
    yield Finding(subject=subject, level=Level.OK, text=text)
    try:
        check_revision(inventory)
    except PipelineError as error:
        text = "its schema is made or brought up to date by the next command that needs it."
        level = Level.OK if is_own else Level.FAIL
        yield Finding(subject=subject, level=level, text=text if is_own else str(error))
        return
    yield Finding(subject=subject, level=Level.OK, text="its schema is that of this release.")
    yield from _rights(inventory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duty:
    """What a role of roles.sql is for, and the rights that show that a login has it."""

    role: str
    purpose: str
    privilege: str
    tables: tuple[str, ...]
    level: Level


# A login that lacks one of these lacks the role, or roles.sql was not run after a migration.
_DUTIES = (
    _Duty(
        role="bp_reader",
        purpose="read",
        privilege="SELECT",
        tables=(*(table.name for table in metadata.sorted_tables), "inventory", "published"),
        level=Level.FAIL,
    ),
    _Duty(
        role="bp_planner",
        purpose="plan and acquire",
        privilege="INSERT",
        tables=("item", "job", "batch", "batch_state", "bookmark", "ceiling_candidate"),
        level=Level.WARN,
    ),
    _Duty(
        role="bp_worker",
        purpose="work on batches",
        privilege="INSERT",
        tables=("attempt", "part_file", "attempt_item", "load", "schema_version"),
        level=Level.WARN,
    ),
)


def _rights(inventory: sa.Engine) -> Iterator[Finding]:
    for duty in _DUTIES:
        missing = _missing_rights(inventory, duty)
        text, level = f"this login may {duty.purpose}.", Level.OK
        if missing:
            level = duty.level
            text = (
                f"this login may not {duty.purpose}: it lacks {_shortened(missing)}. Make it a "
                f"member of {duty.role} (inventory/roles.sql); run the file after a migration."
            )
        yield Finding(subject="rights", level=level, text=text)


def _missing_rights(inventory: sa.Engine, duty: _Duty) -> list[str]:
    """Return what this login lacks for a duty."""
    usage = sa.select(sa.func.has_schema_privilege(SCHEMA, "USAGE"))
    names = [f"{SCHEMA}.{name}" for name in duty.tables]
    held = sa.select(*(sa.func.has_table_privilege(name, duty.privilege) for name in names))
    with transaction(inventory) as connection:
        if not connection.execute(usage).scalar_one():
            return [f"USAGE on schema {SCHEMA}"]
        answers = connection.execute(held).one()
    return [
        f"{duty.privilege} on {name}"
        for name, holds in zip(names, answers, strict=True)
        if not holds
    ]


def check_source(
    subject: str, inventory: sa.Engine, source: MetaSource, job_name: str | None = None
) -> Iterator[Finding]:
    """Look at a meta table: its ceiling and why that one, what cannot be checked, what a filter
    costs above the bookmark of a job.

    Raises:
        PipelineError: as from reading the meta table.
    """
    choice, table = source.choice, source.table
    text = f"{source.name} can be read; {describe(source.reading())}."
    yield Finding(subject=subject, level=Level.OK, text=text)
    text = f"its ceiling is {choice.strategy.value!r}: {choice.reason}."
    yield Finding(subject=subject, level=Level.OK, text=text)
    for note in (*table.notes, *choice.warnings):
        yield Finding(subject=subject, level=Level.WARN, text=f"{note}.")
    ceiling = source.known_ceiling()
    if table.where is None or ceiling is None:
        return
    planned = None if job_name is None else _planned_up_to(inventory, job_name, source.name)
    cost = filter_cost(table, planned, ceiling)
    text = f"rows that its filter reads: {cost.scanned}, kept of those that come next: {cost.kept}."
    if cost.proposal is None:
        yield Finding(subject=subject, level=Level.OK, text=text)
    else:
        text = f"{text} An index would help: {cost.proposal}"
        yield Finding(subject=subject, level=Level.WARN, text=text)


def _planned_up_to(inventory: sa.Engine, name: str, meta_table: str) -> int | None:
    query = sa.select(job.c.id).where(job.c.name == name, job.c.meta_table == meta_table)
    with transaction(inventory) as connection:
        job_id = connection.execute(query).scalar_one_or_none()
        return None if job_id is None else highest_planned(connection, job_id, EVERYWHERE)


def _shortened(names: list[str]) -> str:
    shown, others = ", ".join(names[:3]), len(names) - 3
    return f"{shown} and {others} more" if others > 0 else shown
