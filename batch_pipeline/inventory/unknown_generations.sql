-- The generations that no attempt of a stream has published, by their position.
SELECT asked.position
  FROM unnest(CAST(:jobs AS text[]), CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]),
              CAST(:generations AS bigint[]))
       WITH ORDINALITY AS asked (job, first_id, last_id, generation, position)
 WHERE NOT EXISTS (
       SELECT FROM batch_pipeline.job j
         JOIN batch_pipeline.batch b ON b.job_id = j.id
         JOIN batch_pipeline.attempt a ON a.batch_id = b.id
        WHERE j.stream = :stream AND j.name = asked.job AND b.first_id = asked.first_id
          AND b.last_id = asked.last_id AND a.generation = asked.generation)
