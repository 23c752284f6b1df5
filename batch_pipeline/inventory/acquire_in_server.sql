-- Acquires the next new batches of a job whose meta table is in the inventory's own database, one
-- for each token.
--
-- Handles only the common case: one run of planned ids, no waiting batch, and batches that end below
-- the high watermark. In any other case no row is returned for the token, nothing is changed, and the
-- statements of acquire.py decide, of which this function is the short form. `cut` is the text of the
-- statement that finds the last item of a batch; its parameters are first id, last id, weight and
-- count. `runs` is the text of the statement that finds which ids exist; its parameters are first id
-- and last id. It is executed only for a range with gaps, and sees rows that were inserted or deleted
-- since `cut`; that is another case.
CREATE OR REPLACE FUNCTION pg_temp.batch_pipeline_acquire(
    planning integer, of_job integer, attempts_allowed integer, is_bisected boolean,
    window_first_id bigint, highest_id bigint, weight_allowed bigint, count_allowed bigint,
    cut text, runs text, batch_config text, tokens uuid[], its_liveness_key bigint, its_run_id text,
    its_lease interval
) RETURNS TABLE (token uuid, attempt_id bigint, batch_id bigint, first_id bigint, last_id bigint,
                 weight bigint, item_count bigint, key_digits bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one record;
    run record;
    final record;
    planned record;
    id_runs bigint[];
    next_id bigint;
BEGIN
    SELECT j.kind, j.max_attempts, j.bisect, j.paused_at, j.key_digits INTO one
      FROM batch_pipeline.job j WHERE j.id = of_job;
    IF NOT FOUND OR one.kind = 'backfill' OR one.paused_at IS NOT NULL
       OR one.max_attempts <> attempts_allowed OR one.bisect <> is_bisected THEN
        RETURN;
    END IF;
    PERFORM FROM batch_pipeline.job kin
            JOIN batch_pipeline.batch_state s ON s.job_id = kin.id
      WHERE (kin.id = of_job
             OR kin.parent_id = of_job AND kin.kind = 'late' AND kin.paused_at IS NULL)
        AND s.state IN ('planned', 'interrupted')
        AND s.state IN ('planned', 'failed', 'interrupted', 'dead')
      LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    -- Losing an acquisition in a server crash is harmless: its token is then unknown.
    PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    PERFORM pg_catalog.pg_advisory_xact_lock(planning, of_job);
    SELECT count(*) AS runs, min(b.first_id) AS first_id, max(b.last_id) AS last_id INTO run
      FROM batch_pipeline.bookmark b WHERE b.job_id = of_job;
    IF run.runs <> 1 OR run.first_id <> window_first_id OR run.last_id >= highest_id THEN
        RETURN;
    END IF;
    next_id := run.last_id + 1;
    key_digits := one.key_digits;
    FOREACH token IN ARRAY tokens LOOP
        EXECUTE cut INTO final USING next_id, highest_id, weight_allowed, count_allowed;
        EXIT WHEN final IS NULL OR final.weight IS NULL OR final.next_uid IS NULL
               OR final.next_uid = final.uid
               OR final.next_weight IS NULL AND final.position < count_allowed;
        first_id := next_id;
        last_id := final.next_uid - 1;
        weight := final.total;
        item_count := final.position;
        id_runs := NULL;
        IF item_count <= last_id::numeric - first_id THEN
            EXECUTE runs INTO planned USING first_id, last_id;
            EXIT WHEN planned.items <> item_count OR planned.weight <> weight;
            id_runs := ARRAY[planned.firsts, planned.lasts];
        END IF;
        INSERT INTO batch_pipeline.batch
               (job_id, first_id, last_id, weight, item_count, oversized, config, id_runs)
        VALUES (of_job, batch_pipeline_acquire.first_id, batch_pipeline_acquire.last_id,
                batch_pipeline_acquire.weight, batch_pipeline_acquire.item_count,
                batch_pipeline_acquire.weight > weight_allowed, batch_config::jsonb,
                id_runs)
        RETURNING id INTO batch_id;
        INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state, attempts)
        VALUES (batch_pipeline_acquire.batch_id, of_job, 'running', 1);
        INSERT INTO batch_pipeline.attempt
               (batch_id, number, token, liveness_key, status, run_id, lease_until)
        VALUES (batch_pipeline_acquire.batch_id, 1, batch_pipeline_acquire.token,
                its_liveness_key, 'running', its_run_id, clock_timestamp() + its_lease)
        RETURNING id INTO attempt_id;
        next_id := final.next_uid;
        RETURN NEXT;
    END LOOP;
    UPDATE batch_pipeline.bookmark SET last_id = next_id - 1
     WHERE job_id = of_job AND first_id = window_first_id AND next_id - 1 > last_id;
END
$$
