"""How lines of text files become records. Values only; what a line holds is not looked at."""

from dataclasses import dataclass

from batch_pipeline.domain.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedColumn:
    """A column of fixed-width text: `start` counts characters from 1."""

    name: str
    start: int
    width: int

    def __post_init__(self) -> None:
        if self.start < 1 or self.width < 1 or not self.name:
            shown = f"{self.name}: {self.start}, {self.width}"
            expected = "a name, and start and width of 1 or more"
            raise InvalidValueError("source.options.columns", shown, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How text files become records, one a line: fixed-width columns, blanks at their ends cut.

    Without columns the line as a whole is the one column `line`.
    """

    columns: tuple[FixedColumn, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InvalidValueError("source.options.columns", names, "names, each once")
