-- The transactions that may still insert rows into a table.
-- Inserts into a partition lock neither its parent nor its siblings.
WITH RECURSIVE family AS (
    SELECT CAST(:relation AS oid) AS oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT DISTINCT l.virtualtransaction
  FROM pg_catalog.pg_locks l
 WHERE l.locktype = 'relation'
   AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.relation IN (SELECT oid FROM family)
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
