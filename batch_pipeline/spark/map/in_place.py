"""Maps a record whose expressions may change its values in place, such as `tags.append("x")`.

Then nothing of the record can be passed on as it was read: all that the map gives is on values.
"""

from typing import Any

from batch_pipeline.spark.map.expression import Expression
from batch_pipeline.spark.map.record_plan import RecordPlan

Changed = dict[str, tuple[Any, Expression | None]]  # values, and what gave them if it was a rule


class ExpressionFailedError(Exception):
    """An expression failed on a record; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def changed_in_place(plan: RecordPlan, values: dict[str, Any]) -> Changed | None:
    """Filter a record and take the steps; None when it is filtered out.

    `values` are the values of all its columns by name, in order.

    Raises:
        ExpressionFailedError: an expression failed.
    """
    if plan.filter is not None and not _value(plan, plan.filter, values):
        return None
    names = values if plan.keeps_unmapped else [key for key in plan.keys if key in values]
    result: Changed = {name: (values[name], None) for name in names}
    for step in plan.steps:
        if step.expression is None:
            result.pop(step.name, None)
        else:
            result[step.name] = (_value(plan, step.expression, values), step.expression)
    return result


def _value(plan: RecordPlan, expression: Expression, values: dict[str, Any]) -> Any:
    try:
        return expression.value(values)
    except Exception as error:
        reason = expression.failure(error, hides_values=plan.hides_values)
        raise ExpressionFailedError(reason) from error
