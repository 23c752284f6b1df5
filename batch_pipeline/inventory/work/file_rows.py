"""The rows of part files and quarantine files, by attempt. Reads only."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.tables import part_file


def files_of_attempts(
    connection: sa.Connection, attempt_ids: Sequence[int]
) -> dict[int, list[sa.Row[Any]]]:
    """Read the files of attempts: of each first those of records, then of quarantine, in order."""
    query = (
        sa.select(part_file)
        .where(part_file.c.attempt_id.in_(attempt_ids))
        .order_by(part_file.c.attempt_id, part_file.c.quarantine, part_file.c.position)
    )
    files: dict[int, list[sa.Row[Any]]] = {}
    for row in connection.execute(query):
        files.setdefault(row.attempt_id, []).append(row)
    return files
