"""What must hold once nothing more lands: nothing waits, and Dagster shows what the inventory has.

Asks in SQL of its own, of the inventory's tables and of Dagster's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from batch_pipeline_tests.acceptance.live_dev import LiveDev
from batch_pipeline_tests.guarantees.soak.arrivals import Landed

_KEY = "lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')"
_BATCHES = f"""
SELECT {_KEY}, s.state, s.generation, b.item_count
FROM batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND b.superseded_at IS NULL
"""  # noqa: S608 - the only thing put in is the text above
_ITEMS = "SELECT count(*) FROM batch_pipeline.item WHERE stream = %s"
_OPEN = {
    "attempts": "SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'running'",
    "loads": "SELECT count(*) FROM batch_pipeline.load WHERE status = 'running'",
    "runs": "SELECT count(*) FROM runs WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')",
    "backfills": "SELECT count(*) FROM bulk_actions "
    "WHERE status IN ('REQUESTED', 'CANCELING', 'COMPLETING', 'FAILING')",
}
_PARTITIONS = "SELECT partition FROM dynamic_partitions WHERE partitions_def_name = %s"
_TOLD = """
SELECT e.partition, t.value::integer FROM event_logs e
LEFT JOIN asset_event_tags t ON t.event_id = e.id AND t.key = 'dagster/data_version'
WHERE e.dagster_event_type = 'ASSET_MATERIALIZATION' AND e.asset_key = %s ORDER BY e.id
"""
_GENERATIONS = f"""
SELECT {_KEY}, a.generation FROM batch_pipeline.attempt a
JOIN batch_pipeline.batch b ON b.id = a.batch_id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND a.generation IS NOT NULL
"""  # noqa: S608 - as above
_LOADED = f"""
SELECT DISTINCT {_KEY} FROM batch_pipeline.load l
JOIN batch_pipeline.attempt a ON a.id = l.attempt_id
JOIN batch_pipeline.batch b ON b.id = a.batch_id
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id AND s.generation = a.generation
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND l.status = 'succeeded' AND l.voided_at IS NULL
"""  # noqa: S608 - as above


def waiting(dev: LiveDev, landed: dict[str, Landed]) -> list[str]:
    """Say in words what is not done yet."""
    said = []
    for name, one in landed.items():
        [(items,)] = dev.query(_ITEMS, name)
        batches = dev.query(_BATCHES, name)
        states = Counter(row[1] for row in batches if row[1] != "published")
        published = sum(row[3] for row in batches if row[1] == "published")
        if (items, published) != (one.files, one.files):
            said.append(f"{name}: {one.files} files, {items} items, {published} published")
        said += [f"{name}: {count} batches {state}" for state, count in states.items()]
    for what, query in _OPEN.items():
        [(count,)] = dev.query(query)
        said += [f"{count} {what} open"] if count else []
    return said


def drift(dev: LiveDev, streams: Sequence[str], loaded: Sequence[str]) -> list[str]:
    """Say in words where Dagster shows something else than the inventory has."""
    said = [line for name in streams for line in _drift_of_batches(dev, name)]
    for name in loaded:
        there, shown = _keys(dev, _LOADED, name), {key for key, _ in _told(dev, name, "loaded")}
        batches = {row[0] for row in dev.query(_BATCHES, name)}
        said += _differences(f"{name}: loaded", there, batches)
        said += _differences(f"{name}: loaded partitions", shown, there)
    return said


def told_twice(dev: LiveDev, streams: Sequence[str]) -> int:
    """Count the generations of which Dagster was told more than once."""
    counts = [Counter(_told(dev, name, "batches")) for name in streams]
    return sum(count > 1 for one in counts for count in one.values())


def _drift_of_batches(dev: LiveDev, name: str) -> Iterator[str]:
    newest = {row[0]: row[2] for row in dev.query(_BATCHES, name)}
    yield from _differences(
        f"{name}: partitions", _keys(dev, _PARTITIONS, f"{name}.batches"), newest
    )
    told = dict(_told(dev, name, "batches"))  # of a partition the last one
    yield from _differences(f"{name}: materializations", told, newest)
    other = {
        key: (told[key], newest[key]) for key in told.keys() & newest if told[key] != newest[key]
    }
    if other:
        yield f"{name}: generations told and there: {other}"
    there = {(row[0], row[1]) for row in dev.query(_GENERATIONS, name)}
    invented = {*_told(dev, name, "batches")} - there
    if invented:
        yield f"{name}: told of generations that nobody published: {sorted(invented)}"


def _told(dev: LiveDev, name: str, asset: str) -> list[tuple[Any, Any]]:
    return [(row[0], row[1]) for row in dev.query(_TOLD, f'["{name}", "{asset}"]')]


def _keys(dev: LiveDev, query: str, name: str) -> set[str]:
    return {row[0] for row in dev.query(query, name)}


def _differences(what: str, shown: Any, there: Any) -> Iterator[str]:
    missing, extra = {*there} - {*shown}, {*shown} - {*there}
    if missing:
        yield f"{what}: {len(missing)} missing, the first is {min(missing)}"
    if extra:
        yield f"{what}: {len(extra)} too many, the first is {min(extra)}"
