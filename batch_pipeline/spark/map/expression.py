"""Evaluates expressions of a stream map on records, with the results of the Singer SDK.

The library that the SDK uses evaluates the text, so that results and failures are the SDK's.
"""

import datetime
import hashlib
import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

import simpleeval

from batch_pipeline.spark.map.expression_text import ExpressionText

_LONGEST_REASON = 300  # characters; some exceptions repeat the whole value
_SAYS_NO_VALUES = (  # exceptions whose texts are about types and names, never about values
    simpleeval.NameNotDefined,
    simpleeval.FunctionNotDefined,
    simpleeval.AttributeDoesNotExist,
    simpleeval.OperatorNotDefined,
    simpleeval.FeatureNotAvailable,
    simpleeval.IterableTooLong,
    AttributeError,
    TypeError,
    ZeroDivisionError,
)


class Expression:
    """An expression of the filter, or of the property `own`.

    `fixed` are the names that mean the same for every record, `config` among them.
    """

    def __init__(self, text: ExpressionText, fixed: Mapping[str, Any], own: str | None) -> None:
        self.text = text
        self.own = own
        self._fixed = {**fixed, **_fake(text)}
        functions: dict[str, Any] = dict(simpleeval.DEFAULT_FUNCTIONS)
        functions |= {"md5": _md5, "sha256": _sha256, "bool": bool}
        functions |= {"datetime": simpleeval.ModuleWrapper(datetime)}
        functions |= {"json": simpleeval.ModuleWrapper(json)}
        self._evaluator = simpleeval.EvalWithCompoundTypes(functions=functions)

    def value(self, row: dict[str, Any]) -> Any:
        """Evaluate on a record, given as its columns' values by name.

        Raises:
            Exception: any; the expression failed on this record.
        """
        names = {**row, "_": row, "record": row, **self._fixed}
        if self.own in row:
            names["self"] = row[self.own]
        self._evaluator.names = names
        return self._evaluator.eval(self.text.text, previously_parsed=self.text.node)

    def failure(self, error: Exception, *, hides_values: bool) -> str:
        """Say why a record was set aside, without values of the record if they are to be hidden."""
        what = type(error).__name__
        if not hides_values or isinstance(error, _SAYS_NO_VALUES):
            what = f"{what}: {error}"[:_LONGEST_REASON]
        subject = "filter of the stream map" if self.own is None else f'stream map of "{self.own}"'
        return f"{subject}: {what}"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _fake(text: ExpressionText) -> dict[str, Any]:
    """Give the name `fake` its meaning where it is used and Faker is installed."""
    if "fake" not in text.reads or importlib.util.find_spec("faker") is None:
        return {}
    return {"fake": importlib.import_module("faker").Faker()}
