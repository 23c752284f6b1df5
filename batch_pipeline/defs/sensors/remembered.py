"""What sensors remember from tick to tick, in a cursor; what it means is theirs to know."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory whose fields, each with a default, are what the cursor holds."""

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self:
        """Read a cursor; one of another release is as good as none."""
        told = json.loads(cursor) if cursor else {}
        return cls(**told) if told.keys() <= {*cls.__slots__} else cls()

    def cursor(self) -> str:
        """Write the cursor."""
        return json.dumps(asdict(self))
