-- Inserts a batch with its state and its first attempt, and advances the bookmark of its job.
WITH new AS (
    INSERT INTO batch_pipeline.batch
           (job_id, first_id, last_id, weight, item_count, oversized, config, id_runs)
    VALUES (CAST(:of_job AS integer), CAST(:first_id AS bigint), CAST(:last_id AS bigint),
            CAST(:weight AS bigint), CAST(:item_count AS bigint), CAST(:oversized AS boolean),
            :config, CAST(:id_runs AS bigint[]))
    RETURNING batch.id
), started AS (
    INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state, attempts)
    SELECT id, CAST(:of_job AS integer), 'running', 1 FROM new
), reached AS (
    INSERT INTO batch_pipeline.bookmark (job_id, first_id, last_id)
    VALUES (CAST(:of_job AS integer), CAST(:run_first_id AS bigint), CAST(:run_last_id AS bigint))
    ON CONFLICT (job_id, first_id) DO UPDATE SET last_id = excluded.last_id
)
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
SELECT id, 1, CAST(:token AS uuid), CAST(:liveness_key AS bigint), 'running',
       CAST(:run_id AS text), clock_timestamp() + CAST(:lease AS interval)
  FROM new
RETURNING attempt.id AS attempt_id, attempt.batch_id
