"""The release that worked with revision 0001, as far as a test needs it: the statements that its
workers sent, and an inventory that it filled.
"""

import secrets

import sqlalchemy as sa

from batch_pipeline.inventory.connection import OWNER_IS_GONE

# 13 items of `orders`, of which twelve are in batches 1 to 6, and five of `clicks` in batch 7.
# Batches: 1 planned, 2 being tried, 3 published twice, 4 failed, 5 abandoned, 6 cancelled,
# 7 published, with a later attempt that failed.
FILL = """
INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at)
SELECT stream, n, 'file:///landing/' || stream || n, 10, '2026-03-01'::timestamptz
  FROM (VALUES ('orders', 13), ('clicks', 5)) AS landed (stream, files),
       generate_series(1, files) n;

INSERT INTO batch_pipeline.job (name, meta_table, last_id, publish_count)
VALUES ('orders', 'batch_pipeline.item', 12, 2), ('clicks', 'batch_pipeline.item', 5, 1),
       ('views', 'batch_pipeline.item', 0, 0);

INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
SELECT 1, 2 * n - 1, 2 * n, 20, 2, '{"max_weight": "20"}'::jsonb FROM generate_series(1, 6) n
UNION ALL
SELECT 2, 1, 5, 50, 5, '{}';

INSERT INTO batch_pipeline.schema_version (job_id, version, columns)
VALUES (1, 1, '[["order_id", "integer"]]');

INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
    lease_until, finished_at, error, generation, publish_number, schema_version, encoding,
    key_properties, facts)
SELECT batch_id, number, gen_random_uuid(), 1, status, 'run-' || number,
       clock_timestamp() + interval '1 hour',
       CASE WHEN status <> 'running' THEN clock_timestamp() END, error, generation, publish_number,
       CASE WHEN status = 'succeeded' THEN 1 END,
       CASE WHEN status = 'succeeded' THEN '{"format": "jsonl", "compression": "gzip"}'::jsonb END,
       CASE WHEN status = 'succeeded' THEN '["order_id"]'::jsonb END,
       CASE WHEN status = 'succeeded'
            THEN '{"items": 2, "read": 5, "filtered": 0, "quarantined": 0}'::jsonb END
  FROM (VALUES (2, 1, 'failed', 'bad line', NULL, NULL), (2, 2, 'running', NULL, NULL, NULL),
               (3, 1, 'succeeded', NULL, 1, 1), (3, 2, 'succeeded', NULL, 2, 2),
               (4, 1, 'failed', 'bad line', NULL, NULL),
               (5, 1, 'abandoned', 'its process ended', NULL, NULL),
               (6, 1, 'cancelled', 'cancelled', NULL, NULL),
               (7, 1, 'succeeded', NULL, 1, 1), (7, 2, 'failed', 'bad line', NULL, NULL))
       AS made (batch_id, number, status, error, generation, publish_number);

INSERT INTO batch_pipeline.part_file (attempt_id, quarantine, position, uri, records, size_bytes,
    sha256)
SELECT id, false, 0, 'file:///batches/' || id, 5, 100, repeat('ab', 32)
  FROM batch_pipeline.attempt WHERE status = 'succeeded';
"""

_LOCK = sa.text("SELECT batch.id FROM batch_pipeline.batch WHERE batch.id = :batch FOR UPDATE")
_CLAIM = sa.text("""
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
VALUES (:batch, (SELECT coalesce(max(attempt.number), 0) FROM batch_pipeline.attempt
                  WHERE attempt.batch_id = :batch) + 1,
        gen_random_uuid(), :liveness_key, 'running', 'old-run',
        clock_timestamp() + make_interval(mins => 5))
RETURNING attempt.id
""")
_RENEW = sa.text("""
UPDATE batch_pipeline.attempt SET renewed_at = clock_timestamp(),
       lease_until = clock_timestamp() + make_interval(mins => 5)
 WHERE attempt.id = :attempt AND attempt.status = 'running'
""")
_COUNT = sa.text("""
UPDATE batch_pipeline.job SET publish_count = (job.publish_count + 1) WHERE job.name = :job
RETURNING job.publish_count
""")
_PUBLISH = sa.text("""
UPDATE batch_pipeline.attempt SET status = 'succeeded', finished_at = clock_timestamp(),
       generation = (SELECT coalesce(max(mine.generation), 0) + 1
                       FROM batch_pipeline.attempt AS mine
                      WHERE mine.batch_id = :batch),
       publish_number = :number, schema_version = 1,
       encoding = '{"format": "jsonl", "compression": "gzip"}', key_properties = '["order_id"]',
       facts = '{"items": 2, "read": 5, "filtered": 0, "quarantined": 0}'
 WHERE attempt.id = :attempt AND attempt.status = 'running'
""")
_FILE = sa.text("""
INSERT INTO batch_pipeline.part_file
       (attempt_id, quarantine, position, uri, records, size_bytes, sha256)
VALUES (:attempt, false, 0, 'file:///batches/old-' || :attempt, 5, 100, repeat('cd', 32))
""")
_ITEM = sa.text("""
INSERT INTO batch_pipeline.attempt_item
       (attempt_id, item_id, read, written, filtered, quarantined, bad_file)
VALUES (:attempt, 1, 5, 5, 0, 0, NULL)
""")
_FAIL = sa.text("""
UPDATE batch_pipeline.attempt SET status = 'failed', finished_at = clock_timestamp(),
       error = 'bad line' WHERE attempt.id = :attempt AND attempt.status = 'running'
""")
_CLOSE_DEAD = sa.text(f"""
UPDATE batch_pipeline.attempt SET status = 'abandoned', finished_at = clock_timestamp(),
       error = 'its process ended without a word'
 WHERE attempt.batch_id = :batch AND {OWNER_IS_GONE.text} AND attempt.status = 'running'
""")  # noqa: S608 - a text of our own
_BOOKMARK = sa.text("SELECT job.id, job.last_id FROM batch_pipeline.job WHERE job.name = :job")


class OldWorker:
    """A worker of that release: one connection, and the lock that tells that it lives."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._key = secrets.randbits(63)
        self._alive = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._alive.execute(sa.select(sa.func.pg_advisory_lock(self._key)))

    def claim(self, batch_id: int) -> int:
        """Start an attempt and give its id."""
        with self._engine.begin() as connection:
            connection.execute(_LOCK, {"batch": batch_id})
            connection.execute(_CLOSE_DEAD, {"batch": batch_id})
            values = {"batch": batch_id, "liveness_key": self._key}
            started: int = connection.execute(_CLAIM, values).scalar_one()
        return started

    def renew(self, attempt_id: int) -> bool:
        """Renew the lease of an attempt and tell whether it is still ours."""
        return self._alive.execute(_RENEW, {"attempt": attempt_id}).rowcount == 1

    def publish(self, attempt_id: int, batch_id: int, job: str = "orders") -> bool:
        """Publish an attempt in one transaction and tell whether it was ours to publish."""
        values = {"attempt": attempt_id, "batch": batch_id}
        with self._engine.begin() as connection:
            number = connection.execute(_COUNT, {"job": job}).scalar_one()
            if connection.execute(_PUBLISH, values | {"number": number}).rowcount != 1:
                connection.rollback()
                return False
            connection.execute(_FILE, {"attempt": attempt_id})
            connection.execute(_ITEM, {"attempt": attempt_id})
        return True

    def fail(self, attempt_id: int) -> None:
        """Close an attempt."""
        with self._engine.begin() as connection:
            connection.execute(_FAIL, {"attempt": attempt_id})

    def plan(self, job: str = "orders") -> tuple[int, int]:
        """Begin to plan: read the job with its bookmark."""
        with self._engine.begin() as connection:
            found = connection.execute(_BOOKMARK, {"job": job}).one()
        return found.id, found.last_id

    def close(self) -> None:
        """End its session, as its process would."""
        self._alive.close()
        self._engine.dispose()
