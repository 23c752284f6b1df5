-- Settings and state of the server, for `doctor`.
SELECT clock_timestamp() AS now,
       pg_is_in_recovery() AS replica,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('autovacuum') AS autovacuum,
       current_setting('server_encoding') AS encoding,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int AS most_connections,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')
           AS connections,
       (SELECT age(datfrozenxid) FROM pg_catalog.pg_database WHERE datname = current_database())
           AS xid_age
