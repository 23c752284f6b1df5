-- Whether this role may cut a table in a temporary function.
SELECT has_table_privilege(
           format('%I.%I', CAST(:schema AS text), CAST(:table AS text)), 'SELECT')
   AND has_database_privilege(current_database(), 'TEMPORARY')
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid
                  = to_regclass(format('%I.%I', CAST(:schema AS text), CAST(:table AS text)))
          AND a.attname = ANY (:columns)
          AND t.typnamespace <> CAST('pg_catalog' AS regnamespace))
