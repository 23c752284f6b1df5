"""Which table the ids of a job belong to: its database, and the columns that it is read by.

The name of the job and of the table do not say this. Both facts are stored with the job.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COLUMNS, DATABASE = "columns", "database"
STORED_KEYS = (COLUMNS, DATABASE)
_ROLES = ("uid", "item", "weight")
_INVENTORY = "inventory"
_MOVED = (
    'If only the database has moved and its rows are the same, see "Moving a meta table" in '
    "docs/library.md."
)


def without_identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's configuration without what identifies its table."""
    return {key: value for key, value in config.items() if key not in STORED_KEYS}


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's configuration as it is true wherever the inventory is restored.

    Pointer files keep this: a table outside the inventory's database may have moved meanwhile.
    """
    return dict(config) if config.get(DATABASE) == _INVENTORY else without_identity(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """A database of meta tables, whatever address and login it is reached by.

    `servers` are the names that its server is known by: sharing one of them is enough, and where
    either side has none only `database` is compared. `shown` is for messages.
    """

    kind: str
    shown: str
    database: str = ""
    servers: tuple[str, ...] = ()

    def is_same(self, other: "DatabaseIdentity") -> bool:
        """Return whether two identities are those of one database."""
        if (self.kind, self.database) != (other.kind, other.database):
            return False
        one_is_unknown = not self.servers or not other.servers
        return one_is_unknown or not set(self.servers).isdisjoint(other.servers)

    def to_json(self) -> Any:
        """Return the identity as JSON; a constant for the inventory, which may be restored."""
        if self.kind == _INVENTORY:
            return _INVENTORY
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, stored: Any) -> "DatabaseIdentity":
        """Read what `to_json` returned."""
        if stored == _INVENTORY:
            return INVENTORY
        return cls(**{**stored, "servers": tuple(stored["servers"])})


INVENTORY = DatabaseIdentity(kind=_INVENTORY, shown="the inventory's database")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """What a job reads besides the name of its table."""

    uid: str
    item: str
    weight: str | None
    database: DatabaseIdentity

    def to_json(self) -> dict[str, Any]:
        """Return what is stored with the job."""
        columns = {role: getattr(self, role) for role in _ROLES}
        return {COLUMNS: columns, DATABASE: self.database.to_json()}

    def differences(self, stored: Mapping[str, Any]) -> Iterator[str]:
        """Yield how a job's stored configuration differs; what is not stored does not differ."""
        columns = stored.get(COLUMNS, {})
        for role in _ROLES:
            now = getattr(self, role)
            if columns.get(role, now) != now:
                yield f"its {role} column is {columns[role]!r}, and now {now!r} is named"
        if DATABASE in stored:
            before = DatabaseIdentity.from_json(stored[DATABASE])
            if not before.is_same(self.database):
                yield (
                    f"its table is in {before.shown}, and the one that is configured now is in "
                    f"{self.database.shown}"
                )

    def next_step(self, stored: Mapping[str, Any]) -> str:
        """Return where the documentation of a moved database is; empty if it has not moved."""
        if DATABASE not in stored:
            return ""
        is_same = DatabaseIdentity.from_json(stored[DATABASE]).is_same(self.database)
        return "" if is_same else _MOVED
