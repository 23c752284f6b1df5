"""The database of the inventory: not there, not this release's, or without a right."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, RetryableError


@dataclass(eq=False)
class DatabaseUnreachableError(RetryableError):
    """The inventory database does not answer."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The inventory database at {self.location} cannot be reached ({self.reason}). Nothing "
            f"was changed. Start it or correct BATCH_PIPELINE_INVENTORY_CONN, then run again."
        )


@dataclass(eq=False)
class DatabaseTooOldError(ConfigurationError):
    """The inventory database server is older than the SQL used here."""

    location: str
    version: str
    minimum: str

    def sentence(self) -> str:
        return (
            f"The inventory database at {self.location} is PostgreSQL {self.version}; at least "
            f"{self.minimum} is needed. Nothing was changed. Upgrade the server or name another "
            f"one in BATCH_PIPELINE_INVENTORY_CONN."
        )


@dataclass(eq=False)
class NoInventoryError(ConfigurationError):
    """The home has no embedded inventory that could be migrated."""

    home: str

    def sentence(self) -> str:
        return (
            f"There is no inventory in {self.home}. Nothing was made. Change to the folder of your "
            f"project, or set BATCH_PIPELINE_HOME or BATCH_PIPELINE_INVENTORY_CONN; "
            f"`batch-pipeline run` makes a new embedded inventory."
        )


@dataclass(eq=False)
class SchemaRevisionError(ConfigurationError):
    """The inventory schema is not the one that this release works with."""

    location: str
    found: str
    expected: str

    def sentence(self) -> str:
        if self.found == "none":
            found = "no inventory schema"
        else:
            found = f"the inventory schema at revision {self.found}"
        return (
            f"The database at {self.location} has {found}; this release works with revision "
            f"{self.expected}. Nothing was changed. Run `batch-pipeline migrate` (or install the "
            f"release that the schema belongs to)."
        )


@dataclass(eq=False)
class EmbeddedDatabaseError(ConfigurationError):
    """The embedded PostgreSQL server cannot be started."""

    folder: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The embedded PostgreSQL in {self.folder} did not start ({self.reason}). Its data was "
            f"not touched. See {self.folder}/log, set BATCH_PIPELINE_HOME to another folder, or "
            f"name your own server in BATCH_PIPELINE_INVENTORY_CONN."
        )


@dataclass(eq=False)
class PermissionDeniedError(ConfigurationError):
    """The database role lacks a right."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The database role used at {self.location} lacks a right ({self.reason}). Nothing was "
            f"changed. Grant it, or name a role that has it in BATCH_PIPELINE_INVENTORY_CONN."
        )


@dataclass(eq=False)
class LockTimeoutError(RetryableError):
    """Somebody else holds a lock of the inventory for longer than a transaction of ours lasts."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Another session holds a lock at {self.location} ({self.reason}). Nothing was "
            f"changed. Run again; if it stays, look for an open transaction in pg_stat_activity."
        )
