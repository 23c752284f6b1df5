"""What an adoption is about, and the contradictions that it has found so far."""

from dataclasses import dataclass, field

import sqlalchemy as sa

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.restored import NotAdoptedError

_MOST_PROBLEMS = 100


@dataclass(slots=True, kw_only=True)
class Found:
    """The stream, its meta table by canonical name, and the transaction; problems in words."""

    connection: sa.Connection
    stream: str
    meta_table: str
    problems: list[str] = field(default_factory=list)

    def refuse(self, manifest: Manifest | None, problem: str) -> None:
        """Note what contradicts the inventory; the first hundred are kept."""
        if len(self.problems) < _MOST_PROBLEMS:
            if manifest is not None:
                batch = f"{manifest.stream} {manifest.batch.key}"
                problem = f"{batch}, generation {manifest.generation}: {problem}"
            self.problems.append(problem)

    def check(self) -> None:
        """End the adoption where there are contradictions.

        Raises:
            NotAdoptedError: there are.
        """
        if self.problems:
            raise NotAdoptedError(self.stream, tuple(self.problems))
