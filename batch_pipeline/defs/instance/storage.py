"""Dagster's instance storage in the inventory's Postgres, so that nothing needs to be configured.

Loaded by name from `dagster.yaml`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.connection import normalize_url, replace_dead_connections, use_utc

NO_TIMEOUT = 0
RECYCLE_SECONDS = 600
OVERFLOW = 20


class InventoryStorage(DagsterPostgresStorage):
    """Runs, events and schedules in the inventory's server, configured or embedded."""

    def __init__(self, postgres_url: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(postgres_url=postgres_url, inst_data=inst_data)
        for one in (self._run_storage, self._event_log_storage, self._schedule_storage):
            one.optimize_for_webserver = partial(_optimized, one, one.optimize_for_webserver)  # type: ignore[method-assign]
            # Without this, Dagster opens a connection for each statement, several for an event.
            one.optimize_for_webserver(
                statement_timeout=NO_TIMEOUT, pool_recycle=RECYCLE_SECONDS, max_overflow=OVERFLOW
            )

    @classmethod
    def config_type(cls) -> dict[str, object]:
        """Return an empty schema, because all configuration is in the environment."""
        return {}

    @classmethod
    def from_config_value(  # type: ignore[override] # an empty config value
        cls, inst_data: ConfigurableClassData | None, config_value: dict[str, object]
    ) -> "InventoryStorage":
        """Open the storage; called by Dagster when it loads an instance."""
        # dagster-postgres supports psycopg2 only, so the driver must be in the URL.
        url = normalize_url(Pipeline.from_environment().database_url, driver="psycopg2")
        return cls(postgres_url=url, inst_data=inst_data)


def _optimized(storage: Any, optimize: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Keep connections of a process open, except those of a database server that has ended.

    Sessions use UTC, because Dagster reads their local times as UTC.
    """
    optimize(*args, **kwargs)
    replace_dead_connections(storage._engine)  # noqa: SLF001 - made by `optimize`, not public
    use_utc(storage._engine)  # noqa: SLF001
