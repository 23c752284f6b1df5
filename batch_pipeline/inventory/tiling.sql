-- The live ranges of a job that overlap, the planned ids that are in none of them, and the late
-- items that are in two live batches: one row each, and one row with the number of ranges.
WITH ranges AS (
    SELECT first_id, last_id,
           max(last_id) OVER (ORDER BY first_id, id
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM batch_pipeline.batch
     WHERE job_id = :job_id AND superseded_at IS NULL AND item_ids IS NULL
), runs AS (
    SELECT run.first_id, run.last_id, min(r.first_id) AS lowest, max(r.last_id) AS highest
      FROM batch_pipeline.bookmark run
      LEFT JOIN ranges r ON r.first_id >= run.first_id AND r.last_id <= run.last_id
     WHERE run.job_id = :job_id
     GROUP BY run.first_id, run.last_id
), late AS (
    SELECT unnest(b.item_ids) AS item_id
      FROM batch_pipeline.batch b
      JOIN batch_pipeline.job j ON j.id = b.job_id
     WHERE j.parent_id = :job_id AND j.kind = 'late' AND b.superseded_at IS NULL
)
SELECT 'range' AS kind, count(*) AS first_id, NULL AS last_id FROM ranges
UNION ALL
SELECT 'overlap', first_id, before FROM ranges WHERE first_id <= before
UNION ALL
SELECT 'hole', before + 1, first_id - 1
  FROM ranges
 WHERE first_id > before + 1
   AND EXISTS (SELECT FROM batch_pipeline.bookmark run
                WHERE run.job_id = :job_id
                  AND run.first_id < ranges.first_id AND run.last_id > ranges.before)
UNION ALL
-- Only the first run may start below its first range, since it starts at the lowest possible id.
SELECT 'hole', first_id, coalesce(lowest - 1, last_id)
  FROM runs
 WHERE lowest IS NULL OR first_id NOT IN (:lowest_id, lowest)
UNION ALL
SELECT 'hole', highest + 1, last_id FROM runs WHERE highest <> last_id
UNION ALL
SELECT 'doubled', item_id, NULL FROM late GROUP BY item_id HAVING count(*) > 1
