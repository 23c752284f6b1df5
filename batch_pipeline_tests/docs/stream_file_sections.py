"""What the reference of stream files says beside its models: headings, examples and links.

Examples stand below `attributes` of a stream file; tests hold them against the models.
"""

TITLES = {"": "The stream", "mapping": "Selection, stream maps, flattening"}

EXAMPLES = {
    "": """
stream: orders
source: {uri: ./landing, format: csv}
key_properties: [order_id]
on_nonfinite: "null"
lineage: [_item_id, _source_file]
""",
    "source": """
source:
  uri: /data/exports
  include: ["orders-*.csv", "orders-*.csv.gz"]
  exclude: ["*-test.csv"]
  format: csv
  max_item_size: 256MiB
""",
    "source.meta_table": """
source:
  meta_table:
    conn: $OPS_DB
    table: ops.files
    roots: [/data/exports, "s3://bucket/exports"]
    uid: id
    item: file_location
    weight: size_in_bytes
    imported: imported_at
    where:
      - {column: kind, operator: "=", value: order}
""",
    "source.listing": """
source:
  uri: s3://bucket/landing/orders
  listing: {order: ascending, relist: 6h}
""",
    "source.events": """
source:
  uri: s3://bucket/landing/orders
  events: {queue: https://sqs.eu-central-1.amazonaws.com/123456789012/orders-landed}
""",
    "source.options": """
source:
  uri: ./landing
  format: csv
  options: {delimiter: ";", charset: latin-1, names: [order_id, city, amount]}
""",
    "batch": """
batch: {max_weight: 256MiB, max_count: 10000, min_weight: 16MiB, max_wait: 30m}
""",
    "encoding": """
encoding: {format: parquet, compression: zstd, level: 3}
""",
    "storage": """
storage:
  root: s3://lake/orders
  keep_superseded: 30d
""",
    "schema": """
schema:
  file: orders.schema.json
  evolution: fail
""",
    "on_bad_record": """
on_bad_record: {max_bad_records: 100, max_bad_ratio: 0.001}
""",
    "on_bad_file": """
on_bad_file: {missing: skip, changed: fail, corrupt: quarantine}
""",
    "read_limits": """
read_limits: {max_record_bytes: 16MiB, max_expansion: 1000, max_columns: 2000}
""",
    "part_files": """
part_files: {max_records: 1000000, max_bytes: 512MiB}
""",
    "dagster": """
dagster:
  group: sales
  owners: ["team:sales", ann@example.com]
  schedule: "0 6 * * mon-fri"
  timezone: Europe/Berlin
  max_backlog_age: 26h
""",
    "targets.NAME": """
targets:
  lake:
    command: target-csv
    config: {output_path: /data/lake, file_naming_scheme: "{stream_name}-{timestamp}.csv"}
    timeout: 10m
""",
    "targets.NAME.postgres": """
key_properties: [order_id]
targets:
  warehouse:
    postgres: {conn: $WAREHOUSE_URL, schema: sales, table: orders, mode: upsert}
""",
    "mapping": """
select: ["*", "!password"]
stream_maps:
  orders:
    email: md5(email)
    total: float(price) * int(quantity)
flattening_enabled: true
flattening_max_depth: 1
""",
}

SEE = {
    "": "What becomes of each kind of value, record and file is in [encoding](formats.md).",
    "source": "More: [buckets](s3.md#landing), "
    "[large files](formats.md#large-files), "
    "[formats](formats.md#sources).",
    "source.meta_table": "More: "
    "[a meta table of your own](meta_tables.md#a-meta-table-of-your-own), "
    "[high watermarks](meta_tables.md#high-watermarks).",
    "source.listing": "More: [listing](s3.md#listing).",
    "source.events": "More: [events](s3.md#events).",
    "batch": "More: [choose the limits](../explanation/performance.md#choosing-batch-limits).",
    "encoding": "More: [outputs](formats.md#outputs).",
    "storage": "More: [garbage](retention.md#garbage), "
    "[files that are loaded](retention.md#files-that-are-loaded), "
    "[buckets](s3.md#storage).",
    "schema": "More: [schema](formats.md#schema).",
    "on_bad_record": "More: [bad records and bad files](formats.md#bad-records-and-bad-files).",
    "dagster": "More: [concurrency](dagster.md#concurrency), "
    "[fixed times](dagster.md#fixed-times), "
    "[asset checks](dagster.md#asset-checks).",
    "targets.NAME": "More: [loading](loading.md).",
    "targets.NAME.postgres": "More: [the table](loading.md#postgres-tables).",
    "mapping": "More: [selection and maps](formats.md#selection-stream-maps-flattening).",
}
