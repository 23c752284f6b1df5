"""Which columns of a user's table are id, item and weight, and whether they can be."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import (
    InvalidValueError,
    MetaColumnUnfitError,
    UnknownMetaColumnError,
)
from batch_pipeline.domain.filter import Filter
from batch_pipeline.inventory.meta.catalogue import Found, NamePart


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaColumns:
    """Names of the columns that play the roles; without a weight every item weighs 0.

    Raises:
        InvalidValueError: a name is empty.
    """

    uid: str = "uid"
    item: str = "item"
    weight: str | None = "weight"

    def __post_init__(self) -> None:
        for role, name in (("uid", self.uid), ("item", self.item), ("weight", self.weight)):
            if name == "":
                raise InvalidValueError(f"meta_table.{role}", name, "the name of a column")


def checked_columns(
    found: Found, roles: MetaColumns, where: Filter | None, dialect: str
) -> tuple[MetaColumns, tuple[str, ...]]:
    """Give the roles by the catalogue's own spelling, and what could not be checked.

    Raises:
        UnknownMetaColumnError: a column is not there.
        MetaColumnUnfitError: ids are no integers or could be there twice, or weights no numbers.
    """
    used = MetaColumns(
        uid=_spelled(found, roles.uid, "uid"),
        item=_spelled(found, roles.item, "item"),
        weight=None if roles.weight is None else _spelled(found, roles.weight, "weight"),
    )
    for name in () if where is None else where.columns:
        if name not in {column.name for column in found.columns}:
            raise _unknown(found, name, "filter")
    by_name = {column.name: column for column in found.columns}
    if not _is_integer(by_name[used.uid].type, dialect):
        problem = f"its type is {by_name[used.uid].type!r}, and ids must be integers"
        step = "Name an integer column that grows with every row."
        raise MetaColumnUnfitError(found.canonical_name, used.uid, "uid", problem, step)
    if used.weight is not None and not _is_weight(by_name[used.weight].type, dialect):
        problem = f"its type is {by_name[used.weight].type!r}, and weights must be numbers"
        step = "Name a column of numbers, or a view that casts it to one."
        raise MetaColumnUnfitError(found.canonical_name, used.weight, "weight", problem, step)
    return used, _check_unique(found, used.uid, nullable=bool(by_name[used.uid].nullable))


def _spelled(found: Found, name: str, role: str) -> str:
    spelled = NamePart(name, quoted=False).find(column.name for column in found.columns)
    if spelled is None:
        raise _unknown(found, name, role)
    return spelled


def _unknown(found: Found, name: str, role: str) -> UnknownMetaColumnError:
    columns = tuple(column.name for column in found.columns)
    return UnknownMetaColumnError(found.canonical_name, name, role, columns)


def _is_integer(kind: sa.types.TypeEngine[Any], dialect: str) -> bool:
    # SQLite's views tell no types; there every value is tested when it is read.
    untyped = dialect == "sqlite" and isinstance(kind, sa.types.NullType)
    return isinstance(kind, sa.Integer) or untyped


def _is_weight(kind: sa.types.TypeEngine[Any], dialect: str) -> bool:
    return isinstance(kind, sa.Numeric | sa.Float) or _is_integer(kind, dialect)


def _check_unique(found: Found, uid: str, *, nullable: bool) -> tuple[str, ...]:
    if found.is_view:
        return (f"{found.canonical_name} is a view: that its ids are unique cannot be checked",)
    keys = (found.primary_key, *found.unique_keys)
    if found.primary_key == (uid,):
        return ()
    if found.is_partitioned and any(key[:1] == (uid,) for key in keys):
        note = (
            f"{found.canonical_name} is partitioned: its key holds more columns than {uid}, so "
            f"that ids are unique is taken on trust"
        )
        return (note,)
    if (uid,) not in keys:
        problem = "neither a primary key nor a unique index is on it alone"
        step = "Add one; without it a batch could not be read without reading the whole table."
        raise MetaColumnUnfitError(found.canonical_name, uid, "uid", problem, step)
    if nullable:
        problem = "it may be NULL, and such rows would never be in a batch"
        step = "Declare the column NOT NULL."
        raise MetaColumnUnfitError(found.canonical_name, uid, "uid", problem, step)
    return ()
