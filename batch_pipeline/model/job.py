"""Jobs: one bookmark over a meta table, its terms, identity and status.

`JobTerms` is the configuration; its `config()` never changes; `Job`, `JobReport` and
`JobStatus` are read from the inventory. `TableIdentity` is stored with a job because ids are
meaningful only within one table: it records the database and the columns, which the table's name
does not identify.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from batch_pipeline.model.batch import ENDED, WAITING, BatchState, BatchStatus
from batch_pipeline.model.errors import require
from batch_pipeline.model.filter import Filter, is_storable

COLUMNS, DATABASE = "columns", "database"
_ROLES = ("uid", "item", "weight")
_INVENTORY = "inventory"
_MOVED = (
    'If only the database has moved and its rows are the same, see "Moving a meta table" in '
    "docs/reference/meta_tables.md."
)
MAX_NAME = 200


class JobKind(StrEnum):
    """Kinds of jobs."""

    INCREMENTAL = "incremental"
    BACKFILL = "backfill"  # history, planned all at once
    LATE = "late"  # items that appeared below a bookmark


OWN_KINDS = (JobKind.INCREMENTAL, JobKind.LATE)  # jobs of a stream except backfills


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """Identity (name and canonical name of the meta table) and settings of a job.

    `stream` is set for jobs of a stream. A batch is tried at most `max_attempts` times; with
    `bisect` it is then split until the failing item is isolated. The filter and the identity of the
    table never change; the identity is None if it is not known. `planned_once` has the selection
    and the limits of a backfill as JSON, which never change either.

    Raises:
        InvalidValueError: the name is empty, too long or not printable; `max_attempts` is below 1.
    """

    name: str
    meta_table: str
    kind: JobKind = JobKind.INCREMENTAL
    stream: str | None = None
    where: Filter | None = None
    identity: "TableIdentity | None" = None
    max_attempts: int = 3
    bisect: bool = False
    planned_once: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fits = self.name.strip() and len(self.name) <= MAX_NAME and self.name.isprintable()
        require(fits, "job", self.name, f"1 to {MAX_NAME} printable characters")
        require(self.max_attempts >= 1, "max_attempts", self.max_attempts, "at least 1")

    def config(self) -> dict[str, Any]:
        """Return the immutable configuration of the job as JSON."""
        where = {} if self.where is None else {"where": self.where.to_json()}
        identity = {} if self.identity is None else self.identity.to_json()
        return {**where, **identity, **self.planned_once}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job as stored in the inventory; `paused` is the reason for a pause, None if not paused.

    `key_digits` is the width of ids in its partition keys.
    """

    id: int
    name: str
    meta_table: str
    kind: JobKind
    stream: str | None
    max_attempts: int
    bisect: bool
    paused: str | None
    key_digits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Job with its batches by state, and the items and weight in bytes that wait for a claim.

    Planned and interrupted batches wait. `parent` is the job whose late arrivals it processes.
    """

    job: Job
    parent: str | None
    publish_count: int
    batches: Mapping[BatchState, int]
    waiting_items: int
    waiting_weight: int

    @property
    def is_finished(self) -> bool:
        """Return whether all batches of a backfill are published, dead, cancelled or split."""
        is_backfill = self.job.kind is JobKind.BACKFILL
        return is_backfill and bool(self.batches) and ENDED.issuperset(self.batches)

    @property
    def waiting_batches(self) -> int:
        """Return the number of batches that wait for a claim."""
        return sum(self.batches.get(state, 0) for state in WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Status of a job and its late arrivals.

    `batches` counts by state; `unfinished` are the batches that are neither published nor split, in
    id order. Unplanned items are counted up to the end of the table. `ceiling` describes the high
    watermark and what holds it back. `paused` is the reason, which may be empty, or None if the job
    is not paused.
    """

    name: str
    meta_table: str
    paused: str | None
    batches: Mapping[BatchState, int]
    unfinished: Sequence[BatchStatus]
    items_not_planned: int
    weight_not_planned: int
    ceiling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """Column roles and database of the table that a job reads."""

    uid: str
    item: str
    weight: str | None
    database: "DatabaseIdentity"

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored with the job."""
        columns = {role: getattr(self, role) for role in _ROLES}
        return {COLUMNS: columns, DATABASE: self.database.to_json()}

    def differences(self, stored: Mapping[str, Any]) -> Iterator[str]:
        """Yield the differences from a stored configuration; ignore keys that are not stored."""
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
        """Return a reference to the documentation if the database has moved, otherwise ""."""
        if DATABASE not in stored:
            return ""
        before = DatabaseIdentity.from_json(stored[DATABASE])
        return "" if before.is_same(self.database) else _MOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """Identity of a database, independent of address and login.

    `servers` are the names of its server: one common name is enough for equality. If either side
    has no names, only `database` is compared. `shown` is for messages.
    """

    kind: str
    shown: str
    database: str = ""
    servers: tuple[str, ...] = ()

    def is_same(self, other: "DatabaseIdentity") -> bool:
        """Return whether both identities denote the same database."""
        if (self.kind, self.database) != (other.kind, other.database):
            return False
        is_unknown = not self.servers or not other.servers
        return is_unknown or not set(self.servers).isdisjoint(other.servers)

    def to_json(self) -> Any:
        """Return the identity as JSON; a constant for the inventory, which may be restored."""
        if self.kind == _INVENTORY:
            return _INVENTORY
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> "DatabaseIdentity":
        """Read the form that `to_json` returns."""
        if stored == _INVENTORY:
            return INVENTORY
        return cls(**{**stored, "servers": tuple(stored["servers"])})


INVENTORY = DatabaseIdentity(kind=_INVENTORY, shown="the inventory's database")


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a job's configuration that stays valid if the inventory is restored.

    Manifest files contain it. A table outside of the inventory's database may have moved since.
    """
    is_portable = config.get(DATABASE) == _INVENTORY
    return {k: v for k, v in config.items() if is_portable or k not in (COLUMNS, DATABASE)}


def check_storable(name: str, text: str) -> str:
    """Return the text if databases can store it.

    Raises:
        InvalidValueError: it contains NUL or is not valid UTF-8; `name` is the argument's name.
    """
    require(is_storable(text), name, text, "text without NUL characters or unpaired surrogates")
    return text
