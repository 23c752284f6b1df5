"""Streams that are defined in two code locations of a Dagster instance.

Dagster itself only logs a warning about duplicate asset keys. The two locations would share the
partitions and events of the assets, and the items and batches if they also share the inventory.
"""

import json
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType, SensorInstigatorData

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.stream import Stream

_ACTIVE = timedelta(minutes=2)  # a busy daemon evaluates a sensor later than its interval
_LAUNCHING = ("new_files", "planned", "backfill")  # name suffixes of sensors that launch


def ensure_only_location(
    instance: dg.DagsterInstance, stream: Stream, location: str | None, now: float
) -> None:
    """Check that no other code location launches the batches of a stream.

    A sensor stores the name of its stream in its cursor at the end of its first tick. So the
    location that started first continues, and the sensors of the second never complete a tick. If
    both start at the same time, or the second has launched the stream before, the first by name
    continues. Sensors of a renamed location wait until the old one has been inactive for two
    minutes. `location` is None for runs of our commands, which hold the lock of the home instead.

    Raises:
        ConfigurationError: another location launches them.
    """
    if location is None:
        return
    names = {f"{stream.identifier}_{end}" for end in _LAUNCHING}
    mark = f'"stream": {json.dumps(stream.name)}'
    active: dict[str, tuple[str, float]] = {}
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        data, sensor = state.instigator_data, state.instigator_name
        if state.is_running and isinstance(data, SensorInstigatorData):
            ticked_at = data.last_tick_start_timestamp or data.last_tick_timestamp or 0
            is_ours = sensor in names and mark in (data.cursor or "")
            if is_ours and ticked_at >= now - _ACTIVE.total_seconds():
                active[state.origin.location_name] = sensor, ticked_at
    owner = min(active, default=location)
    if owner != location:
        sensor, ticked_at = active[owner]
        raise ConfigurationError(
            f"The stream {stream.name!r} is defined in two code locations, {owner!r} and "
            f"{location!r}: the sensor {sensor} of {owner!r} was evaluated at "
            f"{datetime.fromtimestamp(ticked_at, UTC):%H:%M:%S} UTC. Nothing was done in "
            f"{location!r}. Remove the stream from one of the two, or rename it; a location that "
            f"was removed or renamed counts for {_ACTIVE.seconds // 60} more minutes."
        )
