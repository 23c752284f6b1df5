-- Details by which a person finds transactions, by virtual transaction id.
SELECT DISTINCT l.virtualtransaction, l.pid,
       CASE WHEN l.pid IS NULL THEN concat('prepared transaction ', p.gid)
            ELSE a.application_name END AS application,
       CAST(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))
            AS double precision) AS age_seconds
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
 WHERE l.virtualtransaction = ANY (:holders)
   AND (l.locktype = 'transactionid' AND l.pid IS NULL
        OR l.locktype = 'virtualxid' AND l.pid IS NOT NULL)
