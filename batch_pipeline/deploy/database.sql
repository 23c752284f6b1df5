-- Roles and the one login of the services, before the first `batch-pipeline migrate --roles bp`.
-- Run by the superuser of an empty server; Postgres's image does so when it makes its data folder.
-- The password comes from a file: psql reads it, and no statement in the server's log has it.
\set ON_ERROR_STOP on
\set password `cat /run/secrets/pipeline_password`

CREATE ROLE bp_owner NOLOGIN;
CREATE ROLE bp_planner NOLOGIN;
CREATE ROLE bp_worker NOLOGIN;
CREATE ROLE bp_reader NOLOGIN;

SET password_encryption = 'scram-sha-256';
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';
CREATE ROLE pipeline LOGIN PASSWORD :'password' IN ROLE bp_planner, bp_worker;

-- Dagster makes its own tables, in the schema public.
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO pipeline;
