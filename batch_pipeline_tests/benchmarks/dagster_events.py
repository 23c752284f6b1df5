"""Fills Dagster's event log with copies of one materialization, one for each partition."""

import sqlalchemy as sa

from batch_pipeline.defs.partitioned import Partitioned

# The inventory's engine pins the search path, so Dagster's tables need their schema.
_COPY = """
INSERT INTO public.event_logs
       (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT e.run_id, replace(e.event, :first, p.partition), e.dagster_event_type, e.timestamp,
       e.step_key, e.asset_key, p.partition
  FROM public.event_logs e, public.dynamic_partitions p
 WHERE e.partition = :first AND e.asset_key = :asset
   AND p.partitions_def_name = :name AND p.partition <> :first AND p.id > :after_id
"""


def copy_materialization(
    connection: sa.Connection, asset: Partitioned, first: str, *, after_id: int = 0
) -> None:
    """Insert the events of the partition `first` for all others whose id is above `after_id`."""
    values = {
        "first": first,
        "asset": asset.asset_key.to_string(),
        "name": asset.set_name,
        "after_id": after_id,
    }
    connection.execute(sa.text(_COPY), values)
