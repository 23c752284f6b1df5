-- The conditions under which a state of the strategy `locks` is valid, and the oid of the table.
-- As text, the start time would depend on the time zone of the session.
SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text
           || ' ' || d.oid || ' ' || c.oid || ' ' || c.relfilenode,
       c.oid::bigint
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database d ON d.datname = current_database()
 WHERE c.relname = :table AND n.nspname = :schema
