-- The sequences that generate the ids of a table.
WITH uid AS (
    SELECT a.attrelid, a.attnum
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = :table AND n.nspname = :schema AND a.attname = :uid
), source AS (SEQUENCES)
SELECT n.nspname AS schema, c.relname AS name, s.seqincrement AS step,
       pg_catalog.has_sequence_privilege(c.oid, 'SELECT')
           AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS readable
  FROM source
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = source.oid
  JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
