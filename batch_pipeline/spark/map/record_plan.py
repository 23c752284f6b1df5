"""What a mapping does to each record of a stream, made once; applied by the maps of each shape."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.record_rules import RecordMapping
from batch_pipeline.spark.map.expression import Expression
from batch_pipeline.spark.map.expression_text import (
    FUNCTION_NAMES,
    RECORD_NAMES,
    ExpressionText,
    column_of_record,
)
from batch_pipeline.spark.map.flattening import Flattening
from batch_pipeline.spark.map.selection import Selection
from batch_pipeline.spark.map.stream_map import PropertyRule, StreamMap, stream_map_of

_SCALAR_STARTS = (
    *("float(", "int(", "str(", "bool(", "json.dumps(", "datetime.date.", "datetime.date("),
    *("datetime.datetime.", "datetime.datetime("),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a property becomes: what `expression` gives, or is removed without one.

    `copies` is the column that the expression merely names, if so. `like` are the columns of which
    the first one that a record has tells whether flattening takes a nested result apart: it does
    for an object; `None` among them and none at all mean that it does not. Where `like` itself is
    None it always does.
    """

    name: str
    expression: Expression | None
    copies: str | None = None
    like: tuple[str | None, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """Select, filter, then take the steps in order, then flatten.

    `reads` are the columns whose values expressions need, all of them with `reads_all`. `changes`
    tells that an expression may change values in place. `is_custom` tells that there is a stream
    map, by which records without properties are filtered out.
    """

    is_custom: bool
    alias: str
    keys: tuple[str, ...]
    selection: Selection | None
    filter: Expression | None
    keeps_unmapped: bool
    steps: tuple[Step, ...]
    flattening: Flattening | None
    reads: frozenset[str]
    reads_all: bool
    changes: bool

    @classmethod
    def of(
        cls, stream: str, mapping: RecordMapping, key_properties: Sequence[str]
    ) -> "RecordPlan | None":
        """Make the plan of a stream; None where records stay as they are.

        Raises:
            InvalidValueError: the mapping is not valid.
        """
        stream_map = stream_map_of(stream, mapping, key_properties)
        flattening = Flattening.of(mapping)
        selection = Selection(mapping.select, key_properties)
        if stream_map is None and flattening is None and selection.selects_all:
            return None
        is_custom = stream_map is not None
        stream_map = stream_map or StreamMap.without_rules(stream, key_properties)
        fixed = {
            "config": dict(mapping.stream_map_config),
            "__stream_name__": stream_map.alias,
            "__original_stream_name__": stream,
        }
        condition = stream_map.filter
        texts = [rule.expression for rule in stream_map.rules if rule.expression is not None]
        computed = [text for text in texts if _copied(text) is None]
        if condition is not None:
            computed.append(condition)
        return cls(
            is_custom=is_custom,
            alias=stream_map.alias,
            keys=stream_map.keys,
            selection=None if selection.selects_all else selection,
            filter=None if condition is None else Expression(condition, fixed, None),
            keeps_unmapped=stream_map.keeps_unmapped,
            steps=_steps(stream_map, fixed),
            flattening=flattening,
            reads=frozenset().union(*(text.reads for text in computed), _own_names(stream_map)),
            reads_all=any(text.whole for text in computed),
            changes=any(text.changes for text in computed),
        )

    @property
    def hides_values(self) -> bool:
        """Tell that values of records are removed or replaced, and so may not appear anywhere.

        Whether a record has a property that a rule gives is not known here, so every rule counts
        but those that leave a property as it is.
        """
        is_hidden = any(step.copies != step.name for step in self.steps)
        return is_hidden or self.selection is not None or not self.keeps_unmapped


def _own_names(stream_map: StreamMap) -> frozenset[str]:
    return frozenset(
        rule.name
        for rule in stream_map.rules
        if rule.expression is not None and "self" in rule.expression.reads
    )


def _copied(text: ExpressionText, own: str | None = None) -> str | None:
    """Give the column that an expression merely names."""
    node = text.node.value
    if not isinstance(node, ast.Name):
        return column_of_record(node)
    if node.id == "self":
        return own
    special = RECORD_NAMES | FUNCTION_NAMES | {"config", "fake"}
    is_special = node.id in special or node.id in {"__stream_name__", "__original_stream_name__"}
    return None if is_special else node.id


def _steps(stream_map: StreamMap, fixed: Mapping[str, Any]) -> tuple[Step, ...]:
    # The SDK derives types of properties in the order of the map, each from those before.
    types: dict[str, tuple[str | None, ...] | None] = {}
    steps: list[Step] = []
    for rule in stream_map.rules:
        if rule.expression is None:
            types[rule.name] = ()
            steps.append(Step(name=rule.name, expression=None))
            continue
        like = _type_like(rule, rule.expression.text, types, keeps=stream_map.keeps_unmapped)
        types[rule.name] = None if like is None else (*like, None)
        steps.append(
            Step(
                name=rule.name,
                expression=Expression(rule.expression, fixed, rule.name),
                copies=_copied(rule.expression, rule.name),
                like=like,
            )
        )
    return tuple(steps)


def _type_like(
    rule: PropertyRule,
    text: str,
    types: Mapping[str, tuple[str | None, ...] | None],
    *,
    keeps: bool,
) -> tuple[str | None, ...] | None:
    if text == "record":
        return None
    is_quoted = text[0] == text[-1] == "'"
    if is_quoted or text.startswith(_SCALAR_STARTS) or text.endswith(".date()"):
        return (None,)
    if not keeps:  # only then the types of the source are left alone
        return (text,)
    own = types.get(rule.name, (rule.name,))
    source = types.get(text, (text,))
    if own is None or (own == () and source is None):
        return None
    return (*own, *(source or ()))
