-- Starts an attempt on the first unlocked batch of a job, or of its late arrivals, in one of some
-- states. Always returns the job's row; takes no batch of a paused job, or if the job is paused.
WITH waiting AS (
    SELECT first.*
      FROM (SELECT kin.id FROM batch_pipeline.job AS kin
             WHERE kin.id = CAST(:of_job AS integer)
                OR kin.parent_id = CAST(:of_job AS integer) AND kin.kind = 'late'
                   AND kin.paused_at IS NULL) AS mine
      JOIN unnest(ARRAY[STATES]) AS wanted(state) ON true
      -- One index probe per job and state, however many batches are waiting.
      JOIN LATERAL (
           SELECT batch.id, batch.first_id, batch.last_id, batch.weight, batch.item_count,
                  batch.oversized, batch.item_ids, job.name, job.key_digits
             FROM batch_pipeline.batch_state
             JOIN batch_pipeline.batch ON batch.id = batch_state.batch_id
             JOIN batch_pipeline.job ON job.id = batch.job_id
            WHERE batch_state.job_id = mine.id
              AND batch_state.state = wanted.state
              -- The exact predicate of the partial index.
              AND batch_state.state IN ('planned', 'failed', 'interrupted', 'dead')
              AND batch.first_id >= CAST(:window_first_id AS bigint)
              AND batch.last_id <= CAST(:window_last_id AS bigint)
              AND NOT EXISTS (SELECT FROM batch_pipeline.job AS own
                               WHERE own.id = CAST(:of_job AS integer)
                                 AND own.paused_at IS NOT NULL)
            ORDER BY batch_state.batch_id
            LIMIT 1
              FOR UPDATE OF batch_state SKIP LOCKED) AS first ON true
     ORDER BY first.id
     LIMIT 1
), started AS (
    UPDATE batch_pipeline.batch_state
       SET state = 'running', attempts = batch_state.attempts + 1
      FROM waiting WHERE batch_state.batch_id = waiting.id
    RETURNING batch_state.batch_id, batch_state.attempts
), tried AS (
    INSERT INTO batch_pipeline.attempt
           (batch_id, number, token, liveness_key, status, run_id, lease_until)
    SELECT batch_id, attempts, CAST(:token AS uuid), CAST(:liveness_key AS bigint), 'running',
           CAST(:run_id AS text), clock_timestamp() + CAST(:lease AS interval)
      FROM started
    RETURNING attempt.id AS attempt_id, attempt.batch_id, attempt.number
)
-- Losing an acquisition in a server crash is harmless: its token is then unknown and cannot publish.
SELECT one.name AS job_name, one.meta_table, one.kind, one.stream, one.max_attempts, one.bisect,
       one.paused_at, one.paused_reason, one.key_digits AS job_key_digits,
       set_config('synchronous_commit', 'off', true) AS flush,
       waiting.*, tried.attempt_id, tried.number
  FROM batch_pipeline.job AS one
  LEFT JOIN tried ON true
  LEFT JOIN waiting ON waiting.id = tried.batch_id
 WHERE one.id = CAST(:of_job AS integer)
