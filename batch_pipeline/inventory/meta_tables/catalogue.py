"""Look up users' tables and their columns in the database catalogue.

Names from configuration are replaced by the catalogue's spelling. This module never puts them into
SQL text.
"""

import difflib
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.meta_tables.connection import database_label, read_transaction
from batch_pipeline.model.errors import (
    InvalidValueError,
    UnknownMetaTableError,
    missing_column,
    unfit_column,
)
from batch_pipeline.model.filter import Filter

_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class NamePart:
    """The name of a schema or table; an unquoted name also matches names in another case."""

    text: str
    quoted: bool

    def find(self, names: Iterable[str]) -> str | None:
        """Return the matching name; None if none matches or several differ in case only."""
        candidates = list(names)
        if self.text in candidates:
            return self.text
        matches = [name for name in candidates if name.casefold() == self.text.casefold()]
        return matches[0] if len(matches) == 1 and not self.quoted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A table or view in the catalogue, with all its columns in order."""

    schema: str
    name: str
    is_view: bool
    is_partitioned: bool
    columns: tuple[sa.Column[Any], ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]

    @property
    def canonical_name(self) -> str:
        """Schema and name, each quoted only where it is not a plain identifier."""
        parts = (self.schema, self.name)
        return ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'
            for part in parts
        )


def parse_name(name: str) -> tuple[NamePart | None, NamePart]:
    """Parse `table` or `schema.table`; a part in double quotes or backticks may hold dots.

    Raises:
        InvalidValueError: the name has another form.
    """
    parts: list[NamePart] = []
    position = 0
    while match := _PART.match(name, position):
        double, backtick, plain = match.groups()
        if double is not None:
            parts.append(NamePart(double.replace('""', '"'), quoted=True))
        elif backtick is not None:
            parts.append(NamePart(backtick.replace("``", "`"), quoted=True))
        else:
            parts.append(NamePart(plain.strip(), quoted=False))
        position = match.end()
        if name[position : position + 1] != ".":
            break
        position += 1
    readable = position == len(name) and not name.endswith(".") and "\0" not in name
    if not readable or not 1 <= len(parts) <= 2 or not all(part.text for part in parts):
        raise InvalidValueError("meta table", name, "table or schema.table")
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def find_table(engine: sa.Engine, name: str) -> CatalogueEntry:
    """Return the table or view with a name.

    Raises:
        InvalidValueError: the name is not `table` or `schema.table`.
        UnknownMetaTableError: there is no such table; the error lists similar names.
        MetaUnreachableError: the database does not answer.
    """
    schema_part, table_part = parse_name(name)
    with read_transaction(engine) as connection, warnings.catch_warnings():
        # A type that SQLAlchemy does not know matters only if its column is used.
        warnings.simplefilter("ignore", exc.SAWarning)
        inspector = sa.inspect(connection)
        schemas = inspector.get_schema_names()
        searched_names: list[str] = []
        for schema in _schemas_to_search(connection, inspector, schema_part, schemas):
            tables, views = inspector.get_table_names(schema), _view_names(inspector, schema)
            match = table_part.find([*tables, *views])
            if match is not None:
                is_view = match not in tables
                return _read_entry(connection, inspector, schema, match, is_view=is_view)
            qualified = [f"{schema}.{table}" for table in (*tables, *views)]
            searched_names += qualified if schema_part else [*tables, *views]
    searched = name if schema_part else table_part.text
    similar_names = difflib.get_close_matches(searched, searched_names or schemas, n=3)
    raise UnknownMetaTableError(database_label(engine), name, tuple(similar_names))


def _schemas_to_search(
    connection: sa.Connection,
    inspector: sa.Inspector,
    schema_part: NamePart | None,
    schemas: list[str],
) -> list[str]:
    if schema_part is not None:
        schema = schema_part.find(schemas)
        return [] if schema is None else [schema]
    if connection.dialect.name == "postgresql":
        return list(connection.execute(sa.select(sa.func.current_schemas(sa.false()))).scalar_one())
    default = inspector.default_schema_name
    return [default] if default is not None else schemas[:1]


def _view_names(inspector: sa.Inspector, schema: str) -> list[str]:
    views = list(inspector.get_view_names(schema))
    if inspector.dialect.name == "postgresql":
        views += inspector.get_materialized_view_names(schema)
    return views


def _read_entry(
    connection: sa.Connection, inspector: sa.Inspector, schema: str, name: str, *, is_view: bool
) -> CatalogueEntry:
    primary_key: tuple[str, ...] = ()
    unique_keys: list[tuple[str, ...]] = []
    if not is_view:
        primary_key = tuple(inspector.get_pk_constraint(name, schema)["constrained_columns"])
        constraints = inspector.get_unique_constraints(name, schema)
        unique_keys += [tuple(constraint["column_names"]) for constraint in constraints]
        for index in inspector.get_indexes(name, schema):
            options = index.get("dialect_options", {})
            # An invalid index may lack rows, as after a failed CREATE INDEX CONCURRENTLY.
            lacks_rows = any(option.endswith(("_where", "_invalid")) for option in options)
            if index["unique"] and not lacks_rows:
                unique_keys.append(tuple(column or "" for column in index["column_names"]))
    return CatalogueEntry(
        schema=schema,
        name=name,
        is_view=is_view,
        is_partitioned=_is_partitioned(connection, schema, name),
        columns=tuple(
            sa.Column(column["name"], column["type"], nullable=column["nullable"])
            for column in inspector.get_columns(name, schema)
        ),
        primary_key=primary_key,
        unique_keys=tuple(unique_keys),
    )


def _is_partitioned(connection: sa.Connection, schema: str, name: str) -> bool:
    if connection.dialect.name != "postgresql":
        return False
    relation = sa.table("pg_class", *map(sa.column, ("relname", "relnamespace", "relkind")))
    namespace = sa.table("pg_namespace", sa.column("oid"), sa.column("nspname"))
    query = (
        sa.select(relation.c.relkind == "p")
        .join_from(relation, namespace, namespace.c.oid == relation.c.relnamespace)
        .where(relation.c.relname == name, namespace.c.nspname == schema)
    )
    return bool(connection.execute(query).scalar())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaColumns:
    """The names of the columns for each role. Without a weight, every item weighs 0.

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


def resolve_columns(
    entry: CatalogueEntry, roles: MetaColumns, where: Filter | None, dialect: str
) -> tuple[MetaColumns, tuple[str, ...]]:
    """Return the roles in the catalogue's spelling, and notes on what could not be checked.

    Raises:
        MetaTableError: a column does not exist, ids are not integers or not unique, or weights are
            not numbers.
    """
    resolved = MetaColumns(
        uid=_resolve_column(entry, roles.uid, "uid"),
        item=_resolve_column(entry, roles.item, "item"),
        weight=None if roles.weight is None else _resolve_column(entry, roles.weight, "weight"),
    )
    by_name = {column.name: column for column in entry.columns}
    for name in () if where is None else where.columns:
        if name not in by_name:
            raise missing_column(entry.canonical_name, name, "filter", tuple(by_name))
    if not _is_integer(by_name[resolved.uid].type, dialect):
        problem = f"its type is {by_name[resolved.uid].type!r}, but ids must be integers"
        step = "Name an integer column that grows with every row."
        raise unfit_column(entry.canonical_name, resolved.uid, "uid", problem, step)
    if resolved.weight is not None and not _is_weight(by_name[resolved.weight].type, dialect):
        problem = f"its type is {by_name[resolved.weight].type!r}, but weights must be numbers"
        step = "Name a column of numbers, or a view that casts it to one."
        raise unfit_column(entry.canonical_name, resolved.weight, "weight", problem, step)
    is_nullable = bool(by_name[resolved.uid].nullable)
    return resolved, _check_unique(entry, resolved.uid, nullable=is_nullable)


def _resolve_column(entry: CatalogueEntry, name: str, role: str) -> str:
    columns = tuple(column.name for column in entry.columns)
    column_name = NamePart(name, quoted=False).find(columns)
    if column_name is None:
        raise missing_column(entry.canonical_name, name, role, columns)
    return column_name


def _is_integer(type_: sa.types.TypeEngine[Any], dialect: str) -> bool:
    # SQLite reports no types for columns of views; their values are checked when they are read.
    untyped = dialect == "sqlite" and isinstance(type_, sa.types.NullType)
    return isinstance(type_, sa.Integer) or untyped


def _is_weight(type_: sa.types.TypeEngine[Any], dialect: str) -> bool:
    return isinstance(type_, sa.Numeric | sa.Float) or _is_integer(type_, dialect)


def _check_unique(entry: CatalogueEntry, uid: str, *, nullable: bool) -> tuple[str, ...]:
    if entry.is_view:
        return (f"{entry.canonical_name} is a view: whether its ids are unique cannot be checked",)
    if entry.primary_key == (uid,):
        return ()
    keys = (entry.primary_key, *entry.unique_keys)
    if (uid,) in keys:
        if nullable:
            problem = "it may be NULL, and such rows would never be in a batch"
            step = "Declare the column NOT NULL."
            raise unfit_column(entry.canonical_name, uid, "uid", problem, step)
        return ()
    if entry.is_partitioned and any(key[:1] == (uid,) for key in keys):
        note = (
            f"{entry.canonical_name} is partitioned and its key has more columns than {uid}, so "
            f"whether its ids are unique cannot be checked"
        )
        return (note,)
    problem = "neither a primary key nor a unique index covers it alone"
    step = "Add one; without it, reading a batch would read the whole table."
    raise unfit_column(entry.canonical_name, uid, "uid", problem, step)
