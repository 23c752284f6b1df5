-- The views of an inventory. A replaced view keeps its owner and its rights; new columns come last.
CREATE OR REPLACE VIEW batch_pipeline.inventory AS
SELECT attempt.id,
       job.meta_table,
       job.name AS job,
       nullif(attempt.run_id, '') AS job_identifier,
       coalesce(attempt.result::json, (
           SELECT json_agg(part_file.uri ORDER BY part_file.position)
             FROM batch_pipeline.part_file
            WHERE part_file.attempt_id = attempt.id AND NOT part_file.quarantine
       ), '[]'::json) AS job_result_item,
       attempt.started_at AS processing_start,
       attempt.finished_at AS processing_end,
       batch.first_id AS batch_id_start,
       batch.last_id AS batch_id_end,
       batch.weight AS batch_weight,
       batch.item_count AS batch_count,
       attempt.number AS attempt,
       attempt.status,
       coalesce(attempt.logging, attempt.error) AS logging,
       batch.config::json AS config,
       batch.id AS batch_id
  FROM batch_pipeline.attempt
  JOIN batch_pipeline.batch ON batch.id = attempt.batch_id
  JOIN batch_pipeline.job ON job.id = batch.job_id;
COMMENT ON VIEW batch_pipeline.inventory IS 'One row per attempt, for people and reports.';

CREATE OR REPLACE VIEW batch_pipeline.published AS
SELECT origin.job,
       attempt.publish_number,
       coalesce(attempt.result::json, (
           SELECT json_agg(part_file.uri ORDER BY part_file.position)
             FROM batch_pipeline.part_file
            WHERE part_file.attempt_id = attempt.id AND NOT part_file.quarantine
       ), '[]'::json) AS job_result_item,
       origin.batch_weight,
       origin.batch_count,
       origin.batch_id_start,
       origin.batch_id_end,
       attempt.generation,
       attempt.finished_at AS published_at,
       origin.meta_table
  FROM batch_pipeline.attempt
 CROSS JOIN LATERAL (
        SELECT job.name AS job, batch.weight AS batch_weight, batch.item_count AS batch_count,
               batch.first_id AS batch_id_start, batch.last_id AS batch_id_end, job.meta_table
          FROM batch_pipeline.batch
          JOIN batch_pipeline.job ON job.id = batch.job_id
         WHERE batch.id = attempt.batch_id
        OFFSET 0 -- else the planner may begin with all batches of a job instead of the numbers
       ) origin
 WHERE attempt.publish_number IS NOT NULL;
COMMENT ON VIEW batch_pipeline.published IS
    'Batches that each job has published, in publish order; the meta table of chained jobs.';
