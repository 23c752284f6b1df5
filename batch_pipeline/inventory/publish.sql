-- Publishes a running attempt and returns its generation.
--
-- The job's row is locked first, so that publish numbers follow commit order. If the attempt no
-- longer runs, no row is returned and the transaction must be rolled back, because the job's
-- counter was incremented.
WITH counted AS (
    UPDATE batch_pipeline.job
       SET publish_count = job.publish_count + 1
      FROM batch_pipeline.batch
     WHERE batch.id = CAST(:batch_id AS bigint) AND job.id = batch.job_id
    RETURNING job.publish_count, batch.id AS batch_id
), moved AS (
    UPDATE batch_pipeline.batch_state
       SET state = 'published', generation = coalesce(batch_state.generation, 0) + 1
      FROM counted
     WHERE batch_state.batch_id = counted.batch_id
    RETURNING batch_state.batch_id, batch_state.generation, counted.publish_count
)
UPDATE batch_pipeline.attempt
   SET status = 'succeeded', finished_at = clock_timestamp(),
       generation = moved.generation, publish_number = moved.publish_count,
       schema_version = CAST(:schema_version AS integer), encoding = :encoding,
       key_properties = :key_properties, facts = :facts, result = :result,
       logging = CAST(:logging AS text), seen = :seen
  FROM moved
 WHERE attempt.batch_id = moved.batch_id AND attempt.token = CAST(:token AS uuid)
   AND attempt.status = 'running'
RETURNING attempt.generation
