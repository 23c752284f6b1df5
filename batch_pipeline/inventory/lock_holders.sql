-- The sessions that hold locks on the inventory, oldest transaction first.
SELECT held.pid, holder.application_name,
       CAST(extract(epoch FROM clock_timestamp() - holder.xact_start) AS bigint) AS seconds
  FROM pg_catalog.pg_locks held
  LEFT JOIN pg_catalog.pg_stat_activity holder ON holder.pid = held.pid
 WHERE held.granted AND held.pid IS DISTINCT FROM pg_backend_pid()
   AND held.database =
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND CASE held.locktype
            WHEN 'advisory' THEN held.objsubid = 2
                 AND held.classid::bigint = ANY (CAST(:purposes AS bigint[]))
            WHEN 'relation' THEN :tables
                 AND (:readers OR held.mode <> 'AccessShareLock')
                 AND held.relation IN (
                     SELECT oid FROM pg_catalog.pg_class
                      WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p'))
            ELSE false END
 GROUP BY held.pid, holder.application_name, holder.xact_start
 ORDER BY holder.xact_start NULLS LAST, held.pid
