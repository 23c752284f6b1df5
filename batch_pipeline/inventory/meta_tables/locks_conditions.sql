-- What the strategy `locks` requires: the kinds of the table and of its ids.
WITH RECURSIVE family AS (
    SELECT c.oid
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = :table AND n.nspname = :schema
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
), uid AS (
    SELECT a.attrelid, a.attnum FROM pg_catalog.pg_attribute a JOIN family f ON a.attrelid = f.oid
     WHERE a.attname = :uid
), source AS (SEQUENCES)
SELECT pg_catalog.pg_is_in_recovery() AS replica,
       EXISTS (SELECT FROM family JOIN pg_catalog.pg_class USING (oid)
                WHERE relkind NOT IN ('r', 'p')) AS foreign_rows,
       EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r JOIN family f ON r.srrelid = f.oid)
           AS subscribed,
       count(s.seqrelid) AS sequences,
       max(s.seqcache) AS cache,
       bool_and(s.seqincrement > 0 AND NOT s.seqcycle) AS rising
  FROM source JOIN pg_catalog.pg_sequence s ON s.seqrelid = source.oid
