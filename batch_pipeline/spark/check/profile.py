"""Keeps track of what a task has seen of its columns, and of what the schema cannot hold.

What a value is, the checks find out; how types widen, the domain knows.
"""

from collections.abc import Iterable

from batch_pipeline.domain.item import Item
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema, joined, needed
from batch_pipeline.domain.schema_change import Misfit


class Profile:
    """The schema widened by what was seen, whatever the order.

    `columns` are what a schema needs to hold all of it. `wide` are the integer columns with values
    that a double cannot hold: such a column does not become a number when a fraction turns up.
    `item` is the one that is being read; misfits keep it with the line of the first such value.
    """

    def __init__(self, schema: RecordSchema) -> None:
        self.columns: dict[str, Column] = schema.by_name()
        self.wide: set[str] = set()
        self.item: Item | None = None
        self._schema = dict(self.columns)
        self._seen: dict[str, _Sights] = {}
        self._places: dict[str, tuple[Item | None, int | None, str]] = {}

    @property
    def fits(self) -> bool:
        """Tell whether the schema holds all that was seen."""
        return not self._places

    def known(self, name: str) -> Column | None:
        """Give a column as the schema has it."""
        return self._schema.get(name)

    def misfits(self) -> tuple[Misfit, ...]:
        """Give the columns that the schema lacks or must widen, as they need to be."""
        found = []
        for name in self.columns:
            if name in self._places:
                item, line, seen = self._places[name]
                found.append(
                    Misfit(
                        column=self.columns[name],
                        item_id=0 if item is None else item.id,
                        location="" if item is None else item.file.location,
                        line=line,
                        seen=seen,
                    )
                )
        return tuple(found)

    def takes(self, seen: Column, *, text: bool, wide: bool = False) -> bool:
        """Tell whether a value stays: the schema holds it, or its column was nothing but nulls."""
        known = self._schema.get(seen.name)
        is_open = known is not None and known.type is ColumnType.UNKNOWN
        return is_open or self.holds(seen, text=text, wide=wide)

    def holds(self, seen: Column, *, text: bool, wide: bool = False) -> bool:
        """Tell whether the schema holds a value as it is."""
        known = self._schema.get(seen.name)
        return known is not None and known == needed(known, seen, wide=wide, text_source=text)

    def see(self, seen: Column, *, text: bool, wide: bool = False, line: int | None = None) -> None:
        """Take in what a column held; `text` tells that it was a text cell, `line` where."""
        name = seen.name
        if wide:
            self.wide.add(name)
        sights = self._seen.get(name)
        sights = self._seen[name] = _Sights(seen) if sights is None else sights.joined_with(seen)
        sights.typed = sights.typed or not text
        known = self._schema.get(name)
        column = needed(known, sights.column, wide=name in self.wide, text_source=not sights.typed)
        self.columns[name] = column
        if column != known:
            self._places.setdefault(name, (self.item, line, seen.type_text))

    def see_names(self, names: Iterable[str], *, line: int | None = None) -> None:
        """Take in the columns of a header, of which no value was seen."""
        for name in names:
            if name not in self.columns:
                self.columns[name] = Column(name=name, type=ColumnType.UNKNOWN)
                self._places[name] = (self.item, line, ColumnType.UNKNOWN.value)


class _Sights:
    """What was seen of a column: joined as text cells and as typed values, for both may come."""

    def __init__(self, seen: Column) -> None:
        self.typed = False
        self._as_text = self._as_typed = seen

    @property
    def column(self) -> Column:
        """The join that is true of what came so far."""
        return self._as_typed if self.typed else self._as_text

    def joined_with(self, seen: Column) -> "_Sights":
        self._as_text = joined(self._as_text, seen, text_source=True)
        self._as_typed = joined(self._as_typed, seen, text_source=False)
        return self
