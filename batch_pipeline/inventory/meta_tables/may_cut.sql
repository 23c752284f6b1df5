-- Whether this role may cut a table in a temporary function.
-- Functions that look up a table by its name raise an error without USAGE on its schema. Policies and
-- users' views may show other rows to this role, or in this session, than to those of the meta table.
SELECT has_database_privilege(current_database(), 'TEMPORARY')
   AND EXISTS (
       SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = :table AND n.nspname = :schema
          AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
          AND NOT c.relrowsecurity
          AND (c.relkind IN ('r', 'p') OR n.nspname = 'batch_pipeline')
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
               WHERE a.attrelid = c.oid AND a.attname = ANY (:columns)
                 AND t.typnamespace <> CAST('pg_catalog' AS regnamespace)))
