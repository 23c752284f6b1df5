-- Roles of the inventory and their privileges.
--
-- Run by an administrator after `batch-pipeline migrate`, and again after each migration:
--
--     psql -v ON_ERROR_STOP=1 -f roles.sql DATABASE
--
-- Running it again is safe, and revokes privileges that it does not grant. The roles cannot log in:
-- grant them to logins. Roles belong to the whole server: if several inventories on one server need
-- different roles, replace the prefix bp_ in a copy of this file:
--
--     sed 's/bp_/orders_/g' roles.sql | psql -v ON_ERROR_STOP=1 DATABASE
--
-- Ids come from identity columns and locks are advisory, so no role needs a privilege on a sequence or
-- a function. Nothing here depends on the search path.

BEGIN;

DO $$
DECLARE
    role_name text;
    relation regclass;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['bp_owner', 'bp_planner', 'bp_worker', 'bp_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
    END LOOP;
    -- Only members may make a role the owner of an object; superusers count as members.
    IF NOT pg_has_role(current_user, 'bp_owner', 'USAGE') THEN
        GRANT bp_owner TO CURRENT_USER;
    END IF;
    -- Changing an owner waits for all transactions, so objects that bp_owner owns are skipped.
    IF (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = 'batch_pipeline')
       <> CAST('bp_owner' AS regrole) THEN
        ALTER SCHEMA batch_pipeline OWNER TO bp_owner;
    END IF;
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
         WHERE relnamespace = CAST('batch_pipeline' AS regnamespace)
           AND relkind IN ('r', 'p', 'v')
           AND relowner <> CAST('bp_owner' AS regrole)
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO bp_owner', relation);
    END LOOP;
END
$$;

-- This revokes column privileges, too.
REVOKE ALL ON SCHEMA batch_pipeline FROM PUBLIC, bp_planner, bp_worker, bp_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA batch_pipeline FROM PUBLIC, bp_planner, bp_worker, bp_reader;

-- All roles read the tables and views.
GRANT USAGE ON SCHEMA batch_pipeline TO bp_planner, bp_worker, bp_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA batch_pipeline TO bp_planner, bp_worker, bp_reader;

-- Planner: register files, open jobs, plan, split, pause, cancel and retry.
GRANT INSERT, UPDATE (size_bytes, modified_at, etag) ON batch_pipeline.item TO bp_planner;
GRANT INSERT, UPDATE (max_attempts, bisect, config, paused_at, paused_reason)
    ON batch_pipeline.job TO bp_planner;
GRANT INSERT, UPDATE (superseded_at) ON batch_pipeline.batch TO bp_planner;
GRANT INSERT, UPDATE (state, forgiven) ON batch_pipeline.batch_state TO bp_planner;
-- Two runs of planned ids are merged into one row.
GRANT INSERT, DELETE, UPDATE (last_id) ON batch_pipeline.bookmark TO bp_planner;
GRANT INSERT, UPDATE (state, saved_at) ON batch_pipeline.ceiling_candidate TO bp_planner;
GRANT UPDATE (status, finished_at, error, logging) ON batch_pipeline.attempt TO bp_planner;

-- Worker: claim, renew, publish and end attempts, load, widen schemas, collect garbage.
GRANT INSERT, UPDATE (
    renewed_at, lease_until, status, finished_at, error, logging, generation, publish_number,
    schema_version, encoding, key_properties, facts, result, seen, pointer_uri
) ON batch_pipeline.attempt TO bp_worker;
GRANT UPDATE (state, attempts, forgiven, generation) ON batch_pipeline.batch_state TO bp_worker;
GRANT UPDATE (publish_count) ON batch_pipeline.job TO bp_worker;  -- also to lock the row
GRANT INSERT ON batch_pipeline.part_file, batch_pipeline.attempt_item TO bp_worker;
GRANT INSERT ON batch_pipeline.schema_version, batch_pipeline.target_probe TO bp_worker;
GRANT INSERT, UPDATE (
    renewed_at, lease_until, status, finished_at, voided_at, records, state, exit_code, mode,
    error, log
) ON batch_pipeline.load TO bp_worker;

COMMIT;
