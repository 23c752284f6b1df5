"""Files in, published BATCH manifests out: each file exactly once, in batches of bounded weight.

The walk of the data, and the room where each station is:

1. arrive    a landing listing finds a file            files/landing.py
2. register  the file becomes an item with an id       inventory/meta_table.py
3. plan      items become batches of bounded weight    domain/planning.py
4. name      a batch becomes a partition in Dagster    domain/partition_key.py, defs/
5. claim     an attempt starts, with token and lease   inventory/attempts.py
6. encode    the items' records become part files      spark/task.py
7. publish   the attempt's row makes them count        steps/encode.py
8. say       SCHEMA, BATCH and STATE lines             singer/messages.py

Where do I go to …

- change what a stream file may say?      settings/stream_attributes.py
- read another file format?               spark/sources.py, then a reader beside csv_reader.py
- write another encoding?                 domain/encoding.py, then a writer beside parquet_writer.py
- add a column to the inventory?          inventory/tables.py, inventory/migrations/versions/
- change what people see in Dagster?      defs/metadata.py, defs/assets.py
- change when batches are launched?       defs/sensors.py, steps/plan.py
- add a command?                          cli/
- name a new failure?                     domain/errors.py
"""
