"""A statement as text, for a server-side function to execute; values are written by the driver."""

from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.sql import visitors

_NUMBERED = {"first_id": "$1", "last_id": "$2", "max_weight": "$3", "max_count": "$4"}


def text_of(engine: sa.Engine, statement: sa.Select[Any]) -> str:
    """Write a statement of a meta table for Postgres with `first_id`, … as $1 to $4.

    Names are quoted by SQLAlchemy, all other values by psycopg.
    """

    def numbered(element: Any, **_given: Any) -> Any:
        if isinstance(element, sa.BindParameter) and element.key in _NUMBERED:
            return sa.literal_column(_NUMBERED[element.key], element.type)
        return None

    written: Any = visitors.replacement_traverse(statement, {}, numbered)
    compiled = written.compile(engine, compile_kwargs={"render_postcompile": True})
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        return psycopg.ClientCursor(raw).mogrify(str(compiled), compiled.params)
