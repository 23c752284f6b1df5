"""Looking whether an inventory and a meta table can be worked with; nothing is changed.

What is found is said in whole sentences; who asks decides what becomes of it.
"""

from collections.abc import Iterator

import sqlalchemy as sa

from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.finding import Finding, Level
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, highest_planned
from batch_pipeline.inventory.meta.ceilings.ceiling import describe
from batch_pipeline.inventory.meta.filter_cost import filter_cost
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.server.engine import location, transaction
from batch_pipeline.inventory.tables import SCHEMA, job
from batch_pipeline.inventory.upkeep.migrate import check_revision
from batch_pipeline.inventory.upkeep.rights import RIGHTS, Right, Role


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


def _rights(inventory: sa.Engine) -> Iterator[Finding]:
    for role, purpose, level in (
        (Role.READER, "read", Level.FAIL),
        (Role.PLANNER, "plan and acquire", Level.WARN),
        (Role.WORKER, "work on batches", Level.WARN),
    ):
        missing = missing_rights(inventory, role)
        if not missing:
            text = f"this login may {purpose}."
            yield Finding(subject="rights", level=Level.OK, text=text)
            continue
        text = (
            f"this login may not {purpose}: it lacks {_shortened(missing)}. Make it a member of "
            f"the role that `batch-pipeline migrate --roles PREFIX` calls {role.named('PREFIX')}."
        )
        yield Finding(subject="rights", level=level, text=text)


def missing_rights(inventory: sa.Engine, role: Role) -> list[str]:
    """Name what this login may not do in the inventory although the role may."""
    usage = sa.select(sa.func.has_schema_privilege(SCHEMA, "USAGE"))
    asked = list(dict.fromkeys(_asked(role)))
    held = sa.select(
        *(
            sa.func.has_table_privilege(table, right)
            if column is None
            else sa.func.has_column_privilege(table, column, right)
            for right, table, column in asked
        )
    )
    with transaction(inventory) as connection:
        if not connection.execute(usage).scalar_one():
            return [f"USAGE on schema {SCHEMA}"]
        answers = connection.execute(held).one()
    return [
        f"{right} on {table}" if column is None else f"{right} of {column} on {table}"
        for (right, table, column), holds in zip(asked, answers, strict=True)
        if not holds
    ]


def _asked(role: Role) -> Iterator[tuple[str, str, str | None]]:
    mine: list[Right] = [right for right in RIGHTS if role in right.roles]
    for right in mine:
        tables = {"SELECT": right.selects, "INSERT": right.inserts, "DELETE": right.deletes}
        for verb, wanted in tables.items():
            for table in wanted:
                yield verb, f"{SCHEMA}.{getattr(table, 'name', '')}", None
        for column in right.updates:
            yield "UPDATE", f"{SCHEMA}.{column.table.name}", column.name


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
