"""Rows of the inventory by the million: one batch goes through the product and is multiplied.

So the columns are those that publishing fills, whatever they are; only ids, names and hashes
differ from row to row.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.benchmarks.clock import Clock
from batch_pipeline_tests.factories import encoded, item_report, part_file, stream

ITEMS_PER_BATCH = 10
LANDING = "s3://example-landing/orders/2026/01/24/"
STORAGE = "s3://example-batches/orders/"
LANDED_AT = datetime(2026, 1, 24, 6, tzinfo=UTC)
TABLES = ("item", "batch", "batch_state", "attempt", "part_file", "attempt_item")
PER_ITEM = ("item", "attempt_item")
_REPEATS = 5

_MULTIPLIED = {
    "item": """
        jsonb_build_object('id', n, 'location', :landing || lpad(n::text, 12, '0') || '.csv.gz',
                           'etag', md5(n::text))
        FROM generate_series(:first * :per + 1, (:last + 1) * :per) n""",
    "batch": """
        jsonb_build_object('id', n + 1, 'first_id', n * :per + 1, 'last_id', (n + 1) * :per)
        FROM generate_series(:first, :last) n""",
    "batch_state": """
        jsonb_build_object('batch_id', n + 1) FROM generate_series(:first, :last) n""",
    "attempt": """
        jsonb_build_object('id', n + 1, 'batch_id', n + 1, 'token', gen_random_uuid(),
            'publish_number', n + 1, 'liveness_key', n,
            'run_id', md5((n / 50)::text)::uuid,
            'pointer_uri', :storage || 'manifests/orders-' || lpad((n * :per + 1)::text, 12, '0')
                           || '-' || lpad(((n + 1) * :per)::text, 12, '0') || '-g1.json',
            'seen', jsonb_set(f.one -> 'seen', '{runs}',
                              jsonb_build_array(jsonb_build_array(n * :per + 1, (n + 1) * :per))))
        FROM generate_series(:first, :last) n""",
    "part_file": """
        jsonb_build_object('attempt_id', n + 1,
            'uri', :storage || 'orders-' || lpad((n * :per + 1)::text, 12, '0') || '-'
                   || lpad(((n + 1) * :per)::text, 12, '0') || '-a1-' || left(md5(n::text), 8)
                   || '-0000-' || right(md5(n::text), 8) || '-0000.jsonl.gz',
            'sha256', md5(n::text) || md5(n::text || 'b'))
        FROM generate_series(:first, :last) n""",
    "attempt_item": """
        jsonb_build_object('attempt_id', (n - 1) / :per + 1, 'item_id', n,
                           'read_etag', md5(n::text))
        FROM generate_series(:first * :per + 1, (:last + 1) * :per) n""",
}
_NEXT_ID = """
SELECT setval(pg_get_serial_sequence('batch_pipeline.' || t, 'id'), :count)
  FROM unnest(ARRAY['batch', 'attempt']) t
"""
_SIZES = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid)
  FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
 WHERE s.nspname = 'batch_pipeline' AND c.relkind = 'r'
"""


def publish_first(database: Database) -> Manifest:
    """Register, plan and publish one batch of the stream `orders`; its rows are the patterns."""
    return _published(database, "orders", ITEMS_PER_BATCH, Clock.of(database.engine))


def steps(database: Database, items: int) -> Iterator[tuple[str, float]]:
    """Give the processor seconds of registering, planning and publishing a batch of so many."""
    clock = Clock.of(database.engine)
    for number in range(_REPEATS):
        _published(database, f"orders-{items}-{number}", items, clock)
    yield from clock.seconds.items()


def multiply(database: Database, batches: int) -> None:
    """Add rows until there are so many batches, and vacuum."""
    with database.engine.begin() as connection:
        there = connection.execute(
            sa.text("SELECT count(*) FROM batch_pipeline.batch")
        ).scalar_one()
        given = {"first": there, "last": batches - 1, "per": ITEMS_PER_BATCH}
        places = {"landing": f"{LANDING}orders-", "storage": STORAGE}
        # Foreign keys hold by construction; looking at each of them takes longer than the rows.
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        for table in TABLES:
            connection.execute(sa.text(_insert(table)), given | places)
        connection.execute(sa.text(_NEXT_ID), {"count": batches})
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))


def sizes(database: Database) -> dict[str, tuple[int, int]]:
    """Give the bytes of each table and of all its indexes."""
    with database.engine.connect() as connection:
        return {row[0]: (row[1], row[2]) for row in connection.execute(sa.text(_SIZES))}


def _insert(table: str) -> str:
    overriding = "OVERRIDING SYSTEM VALUE" if table in {"batch", "attempt"} else ""
    text = _MULTIPLIED[table]
    for name in ("first", "last", "per"):
        text = text.replace(f":{name}", f"CAST(:{name} AS bigint)")
    made, _, series = text.partition("FROM generate_series")
    return f"""
        WITH f AS (SELECT to_jsonb(t) AS one FROM batch_pipeline.{table} t LIMIT 1)
        INSERT INTO batch_pipeline.{table} {overriding}
        SELECT r.* FROM f CROSS JOIN generate_series{series} CROSS JOIN LATERAL
               jsonb_populate_record(NULL::batch_pipeline.{table}, f.one || {made}) r"""  # noqa: S608 - names of this module alone


def _published(database: Database, name: str, items: int, clock: Clock) -> Manifest:
    table = database.meta_table(name)
    with clock.timed("register"):
        table.register([_file(name, number) for number in range(items)], accept_changed=False)
    with clock.timed("plan"):
        database.batches.plan(table, Limits(max_weight=2**40, max_count=items), drain=True)
    (status,) = database.batches.statuses(name)
    reports = tuple(
        item_report(one.id, location=one.file.location, etag="d" * 32)
        for one in table.items(status.batch)
    )
    file = part_file(f"{name}-0.jsonl.gz")
    with database.attempts.claim(
        status.batch, run_id="00000000-0000-0000-0000-000000000000", lease=timedelta(minutes=5)
    ) as claimed:
        made = encoded(name, items=reports, part_files=(file,))
        with clock.timed("publish"):
            manifest = database.attempts.publish(claimed, made, stream(name=name))
    database.attempts.pointed(manifest, f"{STORAGE}manifests/{name}.json")
    return manifest


def _file(name: str, number: int) -> FoundFile:
    location = f"{LANDING}{name}-{number:012}.csv.gz"
    return FoundFile(
        location=location, size_bytes=100_000, modified_at=LANDED_AT, etag=f"{number:032x}"
    )
