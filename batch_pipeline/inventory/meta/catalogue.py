"""Finding a user's table in the catalogue of its database, however its name was written.

Names from configuration are looked up and come back as the catalogue spells them; they never
become part of SQL text here.
"""

import difflib
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.errors import InvalidValueError, UnknownMetaTableError
from batch_pipeline.inventory.meta.meta_engine import place, reading

_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class NamePart:
    """A schema's or a table's name; unquoted text also fits names that differ in case only."""

    text: str
    quoted: bool

    def find(self, names: Iterable[str]) -> str | None:
        """Pick the name that is meant; several that differ in case only are ambiguous."""
        known = list(names)
        if self.text in known:
            return self.text
        alike = [name for name in known if name.casefold() == self.text.casefold()]
        return alike[0] if len(alike) == 1 and not self.quoted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A table or view as the catalogue has it, with all its columns in order."""

    schema: str
    name: str
    is_view: bool
    is_partitioned: bool
    columns: tuple[sa.Column[Any], ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]

    @property
    def canonical_name(self) -> str:
        """One text for the table: schema and name, quoted only where a reader could go wrong."""
        parts = (self.schema, self.name)
        return ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'
            for part in parts
        )


def parse_name(name: str) -> tuple[NamePart | None, NamePart]:
    """Read `table` or `schema.table`; a part in double quotes or backticks may hold dots.

    Raises:
        InvalidValueError: it is neither.
    """
    parts: list[NamePart] = []
    position = 0
    while match := _PART.match(name, position):
        double, backtick, plain = match.groups()
        text = (double or "").replace('""', '"') or (backtick or "").replace("``", "`") or plain
        parts.append(NamePart(text.strip() if plain else text, quoted=plain is None))
        position = match.end()
        if name[position : position + 1] != ".":
            break
        position += 1
    readable = position == len(name) and not name.endswith(".") and "\0" not in name
    if not readable or not 1 <= len(parts) <= 2 or not all(part.text for part in parts):
        raise InvalidValueError("meta table", name, "table or schema.table")
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def find_table(engine: sa.Engine, name: str) -> Found:
    """Find a table or view by its name.

    Raises:
        InvalidValueError: the name is not `table` or `schema.table`.
        UnknownMetaTableError: there is none; similar names are listed.
        MetaUnreachableError: the database does not answer.
    """
    schema_part, table_part = parse_name(name)
    with reading(engine) as connection, warnings.catch_warnings():
        # Types that SQLAlchemy does not know matter only in columns that are used.
        warnings.simplefilter("ignore", exc.SAWarning)
        inspector = sa.inspect(connection)
        schemas = inspector.get_schema_names()
        seen: list[str] = []
        for schema in _candidates(connection, inspector, schema_part, schemas):
            tables, views = inspector.get_table_names(schema), _views(inspector, schema)
            found = table_part.find([*tables, *views])
            if found is not None:
                return _found(connection, inspector, schema, found, is_view=found not in tables)
            qualified = [f"{schema}.{one}" for one in (*tables, *views)]
            seen += qualified if schema_part else [*tables, *views]
    asked = name if schema_part else table_part.text
    close = difflib.get_close_matches(asked, seen or schemas, n=3)
    raise UnknownMetaTableError(place(engine), name, tuple(close))


def _candidates(
    connection: sa.Connection,
    inspector: sa.Inspector,
    schema_part: NamePart | None,
    schemas: list[str],
) -> list[str]:
    """Give the schemas to look into, in order."""
    if schema_part is not None:
        schema = schema_part.find(schemas)
        return [] if schema is None else [schema]
    if connection.dialect.name == "postgresql":
        return list(connection.execute(sa.select(sa.func.current_schemas(sa.false()))).scalar_one())
    default = inspector.default_schema_name
    return [default] if default is not None else schemas[:1]


def _views(inspector: sa.Inspector, schema: str) -> list[str]:
    views = list(inspector.get_view_names(schema))
    if inspector.dialect.name == "postgresql":
        views += inspector.get_materialized_view_names(schema)
    return views


def _found(
    connection: sa.Connection, inspector: sa.Inspector, schema: str, name: str, *, is_view: bool
) -> Found:
    reflected = inspector.get_columns(name, schema)
    columns = (
        sa.Column(column["name"], column["type"], nullable=column["nullable"])
        for column in reflected
    )
    primary_key: tuple[str, ...] = ()
    unique_keys: list[tuple[str, ...]] = []
    if not is_view:
        primary_key = tuple(inspector.get_pk_constraint(name, schema)["constrained_columns"])
        constraints = inspector.get_unique_constraints(name, schema)
        unique_keys += [tuple(one["column_names"]) for one in constraints]
        for index in inspector.get_indexes(name, schema):
            options = index.get("dialect_options", {})
            partial = any(option.endswith("_where") for option in options)
            if index["unique"] and not partial:
                unique_keys.append(tuple(column or "" for column in index["column_names"]))
    return Found(
        schema=schema,
        name=name,
        is_view=is_view,
        is_partitioned=_is_partitioned(connection, schema, name),
        columns=tuple(columns),
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
