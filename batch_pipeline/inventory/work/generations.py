"""Which published attempts a later generation of their batch has replaced. A condition only."""

import sqlalchemy as sa

from batch_pipeline.inventory.tables import attempt

_newer = attempt.alias("newer")

# Of the attempt that a query reads.
IS_REPLACED = sa.exists().where(
    _newer.c.batch_id == attempt.c.batch_id, _newer.c.generation > attempt.c.generation
)
