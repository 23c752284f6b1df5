"""What is known of installed Singer targets, by command and version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import target_probe


@dataclass(frozen=True, slots=True)
class TargetProbes:
    """Verdicts on targets; each call is one transaction."""

    engine: sa.Engine

    def known(self, command: str, version: str) -> Mapping[str, Any] | None:
        """Read what was found when this version of a target was looked at; None if it was not."""
        query = sa.select(target_probe.c.verdict).where(
            target_probe.c.command == command, target_probe.c.version == version
        )
        with transaction(self.engine) as connection:
            found: Mapping[str, Any] | None = connection.execute(query).scalar_one_or_none()
        return found

    def remember(self, command: str, version: str, verdict: Mapping[str, Any]) -> None:
        """Keep what was found; of two at the same time the first one counts."""
        values = {"command": command, "version": version, "verdict": dict(verdict)}
        insert = pg.insert(target_probe).values(values).on_conflict_do_nothing()
        with transaction(self.engine) as connection:
            connection.execute(insert)
