"""Checks records with a compiled JSON Schema; what is checked and how is the SDK's choice.

Draft 2020-12, formats left alone: whether text is a date is found out when it is encoded.
"""

from typing import Any, NoReturn

import jsonschema_rs
from singer_sdk.exceptions import InvalidJSONSchema, InvalidRecord
from singer_sdk.sinks.core import BaseJSONSchemaValidator

_SHOWN = 200


class CompiledValidator(BaseJSONSchemaValidator):
    """A JSON Schema, compiled once. Numbers are compared exactly: int and Decimal, never float.

    Raises:
        InvalidJSONSchema: it is no JSON Schema, or refers to one that is not in it.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(schema)
        try:
            self._compiled = jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)
        except ValueError as error:
            raise InvalidJSONSchema(str(error).partition("\n")[0][:_SHOWN]) from error

    def validate(self, record: dict[str, Any]) -> None:
        """Check a record.

        Raises:
            InvalidRecord: it is not what the schema says; names the property that is wrong.
        """
        if self._compiled.is_valid(record):
            return
        error = next(iter(self._compiled.iter_errors(record)))
        place = ".".join(str(step) for step in error.instance_path)
        problem = error.message[:_SHOWN]
        raise InvalidRecord(f"{place}: {problem}" if place else problem, record)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")
