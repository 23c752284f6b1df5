"""Reading stream files and folders of stream files."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.config.stream_file import (
    find_stream_files,
    load_streams,
    load_valid_streams,
    read_stream_file,
)
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, StreamFileError
from batch_pipeline.model.filter import AllOf, Condition, Operator
from batch_pipeline.model.load import MessageMode, PostgresTarget, SingerTarget, WriteMode
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    Evolution,
    LineageColumn,
    OnBadFile,
    OnNonfinite,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import (
    Arrivals,
    CsvOptions,
    DagsterRules,
    KeyOrder,
    PartLimits,
    Source,
    SourceFormat,
    Storage,
    Strategy,
    Stream,
    TableSource,
)
from batch_pipeline_tests.config.test_stream_file_mistakes import (
    META_TABLE,
    MINIMAL,
    QUEUE,
    stream_file,
    with_lines,
    with_source,
)

FULL = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders.v2
  source:
    uri: file:///data/caf%C3%A9
    include: ["orders-*.csv", "late-*.csv"]
    exclude: ["*.tmp"]
    max_item_size: 64KiB
    format: csv
    options: {delimiter: ";", quote: "'", escape: '\\', names: [a, b], charset: cp1252}
  batch: {max_weight: 1.5GiB, max_count: 7, max_wait: 1h, min_weight: 10MB}
  key_properties: [order_id, line]
  encoding: {format: parquet, compression: zstd}
  storage: {root: /data/batches, prefix: p_}
  on_bad_record: {max_bad_records: 3, max_bad_ratio: 0.01}
  on_bad_file: {missing: skip, corrupt: quarantine}
  on_nonfinite: string
  schema: {file: columns.json, evolution: rescue, sample_records: 10}
  select: ["*", "!email"]
  stream_maps: {orders.v2: {total: "price * 2"}}
  stream_map_config: {hash_seed: x}
  flattening_enabled: true
  flattening_max_depth: 2
  flattening_separator: "_"
  transform: my.module:function
  lineage: [_item_id, _sdc_batched_at]
  read_limits: {max_record_bytes: 1MiB, max_expansion: 9, max_columns: 100}
  part_files: {max_records: 5000, max_bytes: 1MiB}
  dagster: {partitions_per_run: 4}
"""


def test_stream_file_with_required_keys_only_gets_the_defaults(tmp_path: Path) -> None:
    assert read_stream_file(stream_file(tmp_path)) == Stream(
        name="orders",
        source=Source(
            uri=f"file://{tmp_path}/orders/landing",
            include=("*",),
            format=SourceFormat.AUTO,
            csv=CsvOptions(delimiter=",", quote='"'),
        ),
        limits=Limits(
            max_weight=67_108_864, max_count=1_000, min_weight=0, max_wait=timedelta(minutes=5)
        ),
        encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
        storage=Storage(root=f"file://{tmp_path}/orders/batches", prefix=""),
        part_limits=PartLimits(max_records=100_000, max_bytes=134_217_728),
    )


def test_stream_file_with_every_key(tmp_path: Path) -> None:
    file = stream_file(tmp_path, FULL)
    file.with_name("columns.json").write_text('{"properties": {"a": {"type": "integer"}}}')
    assert read_stream_file(file) == Stream(
        name="orders.v2",
        source=Source(
            uri="file:///data/caf%C3%A9",
            include=("orders-*.csv", "late-*.csv"),
            exclude=("*.tmp",),
            max_item_bytes=65_536,
            format=SourceFormat.CSV,
            csv=CsvOptions(
                delimiter=";", is_delimiter_given=True, quote="'", escape="\\", names=("a", "b")
            ),
            charset="cp1252",
        ),
        limits=Limits(
            max_weight=1_610_612_736,
            max_count=7,
            min_weight=10_000_000,
            max_wait=timedelta(hours=1),
        ),
        encoding=Encoding(format=Format.PARQUET, compression=Compression.ZSTD),
        storage=Storage(root="file:///data/batches", prefix="p_"),
        key_properties=("order_id", "line"),
        schema=SchemaRules(
            declared=RecordSchema((Column(name="a", type=ColumnType.INTEGER),)),
            evolution=Evolution.RESCUE,
            sample_records=10,
        ),
        on_bad_record=BadRecordRules(max_bad_records=3, max_bad_ratio=0.01),
        on_bad_file=BadFileRules(missing=OnBadFile.SKIP, corrupt=OnBadFile.QUARANTINE),
        on_nonfinite=OnNonfinite.STRING,
        mapping=RecordMapping(
            stream_maps={"orders.v2": {"total": "price * 2"}},
            stream_map_config={"hash_seed": "x"},
            flattening_enabled=True,
            flattening_max_depth=2,
            flattening_separator="_",
            select=("*", "!email"),
        ),
        transform="my.module:function",
        lineage=(LineageColumn.ITEM_ID, LineageColumn.BATCHED_AT),
        read_limits=ReadLimits(max_record_bytes=2**20, max_expansion=9, max_columns=100),
        part_limits=PartLimits(max_records=5_000, max_bytes=1_048_576),
        dagster=DagsterRules(partitions_per_run=4),
    )


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("{format: jsonl, compression: none}", "none"), ("{format: parquet}", "snappy")],
)
def test_default_compression_depends_on_the_format(
    tmp_path: Path, encoding: str, expected: str
) -> None:
    path = stream_file(tmp_path, with_lines(f"encoding: {encoding}"))
    assert read_stream_file(path).encoding.compression == expected


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("landing", "file://{folder}/orders/landing"),
        ("../../my landing/", "file://{parent}/my%20landing"),
        ("/data/été#1", "file:///data/%C3%A9t%C3%A9%231"),
        ("~/landing", "file:///users/zoe/landing"),
        ("file:///data/./a%20b/", "file:///data/a%20b"),
        ("FILE:///data", "file:///data"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("s3://my.bucket-1/a b//é%20c", "s3://my.bucket-1/a b//é%20c"),
    ],
)
def test_location_becomes_an_absolute_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, uri: str
) -> None:
    """Paths are percent-encoded; keys of a bucket are not."""
    monkeypatch.setenv("HOME", "/users/zoe")
    text = MINIMAL.replace("./landing", f'"{written}"')
    expected = uri.format(folder=tmp_path, parent=tmp_path.parent)
    assert read_stream_file(stream_file(tmp_path, text)).source.place == expected


def test_stream_file_at_relative_path_has_absolute_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    stream = read_stream_file(Path("orders/defs.yaml"))
    assert stream.source.place == f"file://{Path.cwd()}/orders/landing"


def test_stream_file_with_byte_order_mark_and_anchors_is_read(tmp_path: Path) -> None:
    text = MINIMAL.replace("orders", "&same orders") + "  storage: {prefix: *same}\n"
    stream = read_stream_file(stream_file(tmp_path, "\ufeff" + text))
    assert stream.name == stream.storage.prefix == "orders"


def test_stream_file_with_several_merge_keys_is_read(tmp_path: Path) -> None:
    text = with_lines("batch: {<<: {max_count: 5}, <<: {max_weight: 1MiB}}")
    limits = read_stream_file(stream_file(tmp_path, text)).limits
    assert (limits.max_count, limits.max_weight) == (5, 2**20)


def test_missing_stream_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match=r"cannot be read \(No such file or directory\)"):
        read_stream_file(tmp_path / "defs.yaml")


def test_find_stream_files_lists_one_level_sorted_by_name(tmp_path: Path) -> None:
    stream_file(tmp_path, name="b")
    stream_file(tmp_path, name="a")
    stream_file(tmp_path, name=".git")
    stream_file(tmp_path, name="a/deeper")
    (tmp_path / "defs.yaml").write_text(MINIMAL)
    paths = [path.relative_to(tmp_path).as_posix() for path in find_stream_files(tmp_path)]
    assert paths == ["a/defs.yaml", "b/defs.yaml"]


@pytest.mark.parametrize("folder", ["", "missing"])
def test_load_streams_without_stream_file_is_rejected(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ConfigurationError, match="There is no stream file"):
        load_streams(tmp_path / folder)
    assert load_valid_streams(tmp_path / folder) == ({}, [])


def test_stream_that_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    """Such as one in a folder of another user; root may enter all, but no circle of links."""
    stream_file(tmp_path, MINIMAL)
    for name in ("circle", "lost+found"):  # the latter is in the root of a volume
        (tmp_path / name).symlink_to(name)
    (tmp_path / "notes.txt").write_text("")
    streams, [error] = load_valid_streams(tmp_path)
    assert list(streams) == ["orders"]
    assert f"{tmp_path}/circle/defs.yaml: the file cannot be read (Too many" in str(error)
    with pytest.raises(StreamFileError, match=r"circle: the folder cannot be listed \(Too"):
        load_streams(tmp_path / "circle")


def test_error_of_one_stream_file_does_not_affect_other_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the extra for a key is not installed, or its JSON Schema is nested too deeply."""
    monkeypatch.setitem(sys.modules, "batch_pipeline.encode.mapping.singer_map", None)
    monkeypatch.delattr("batch_pipeline.encode.mapping.singer_map", raising=False)
    stream_file(tmp_path, MINIMAL)
    flat, declared = "flattening_enabled: true", "schema: {file: a.json}"
    for name, lines, json_schema in (
        ("declared", [flat, declared], '{"properties": {"id": {"type": "integer"}}}'),
        ("deep", [declared], "[" * 100_000),
        ("flat", [flat], ""),
    ):
        text = with_lines(*lines).replace("stream: orders", f"stream: {name}")
        file = stream_file(tmp_path, text, name=name)
        (file.parent / "a.json").write_text(json_schema)
    streams, errors = load_valid_streams(tmp_path)
    assert list(streams) == ["orders"]
    assert [error.stream for error in errors] == ["declared", "deep", "flat"]
    assert "while decoding a JSON array" in str(errors[1])
    for error in (errors[0], errors[2]):
        assert "`flattening_enabled` of a stream" in str(error)


def test_other_components_of_a_dagster_project_are_not_streams(tmp_path: Path) -> None:
    stream_file(tmp_path, MINIMAL)
    for kind in ("dagster_dbt.DbtProjectComponent", "batch_pipeline.BatchResources"):
        stream_file(tmp_path, f"type: {kind}\n", name=kind)
    misspelled = stream_file(tmp_path, "type: batchpipeline.BatchStream\n", name="x")
    streams, [error] = load_valid_streams(tmp_path)
    assert list(streams) == ["orders"]
    assert error.path == str(misspelled)


@pytest.mark.parametrize("names", [("orders", "orders"), ("or.ders", "or-ders")])
def test_streams_with_a_duplicate_name_are_not_loaded(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Names that differ only in `-`, `.` and `_` are the same in Dagster."""
    for folder, name in zip("ab", names, strict=True):
        stream_file(tmp_path, MINIMAL.replace("orders", name), name=folder)
    stream_file(tmp_path, MINIMAL.replace("orders", "customers"), name="c")
    streams, errors = load_valid_streams(tmp_path)
    assert list(streams) == ["customers"]
    paths = [f"{tmp_path}/{name}/defs.yaml" for name in "ab"]
    assert [(error.path, error.line) for error in errors] == [(path, 3) for path in paths]
    assert all(other in str(error) for error, other in zip(errors, paths[::-1], strict=True))
    assert all(name in str(error) for error in errors for name in names)
    with pytest.raises(ConfigurationError, match=f"the stream {names[0]} is also described by"):
        load_streams(tmp_path)


def test_every_key_has_a_description() -> None:
    schema = StreamAttributes.model_json_schema()
    models = schema["$defs"]
    keys = [
        (name, key.get("description") or models[key["$ref"].rpartition("/")[2]]["description"])
        for model in (schema, *models.values())
        for name, key in model.get("properties", {}).items()
    ]
    assert len(keys) == 99
    assert [name for name, description in keys if not description.endswith(".")] == []


def test_lineage_true_selects_the_singer_columns(tmp_path: Path) -> None:
    lineage = read_stream_file(stream_file(tmp_path, with_lines("lineage: true"))).lineage
    assert len(lineage) == 7
    assert all(column.value.startswith("_sdc_") for column in lineage)


@pytest.mark.parametrize(
    ("source", "arrivals"),
    [
        ("", Arrivals()),
        (", listing: {order: ascending}", Arrivals(order=KeyOrder.ASCENDING)),
        (
            ", listing: {order: ascending, relist: 15m}",
            Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(minutes=15)),
        ),
        (
            f", events: {{queue: '{QUEUE}'}}, listing: {{relist: 15m}}",
            Arrivals(queue=QUEUE, relist=timedelta(minutes=15)),
        ),
    ],
    ids=["default", "ascending", "ascending-15m", "events"],
)
def test_bucket_listing_options(tmp_path: Path, source: str, arrivals: Arrivals) -> None:
    path = stream_file(tmp_path, with_source(f"uri: 's3://bucket/landing'{source}"))
    bucket = read_stream_file(path).source
    assert isinstance(bucket, Source)
    assert bucket.arrivals == arrivals
    hour = timedelta(hours=1)
    assert arrivals.relist_every == (arrivals.relist or hour if source else None)


@pytest.mark.parametrize(
    ("source", "root"),
    [
        ("./landing", "./landing2"),
        ("./landing", "./landing/.batches"),
        ("s3://lake/in", "s3://lake/in-out"),
        ("s3://lake/in", "s3://lake"),
        ("s3://lake/in", "s3a://lake2/in/"),
    ],
)
def test_storage_root_beside_the_landing_is_accepted(
    tmp_path: Path, source: str, root: str
) -> None:
    text = with_source(f"uri: '{source}'", f"storage: {{root: '{root}'}}")
    storage_root = read_stream_file(stream_file(tmp_path, text)).storage.root
    assert storage_root.endswith(root.lstrip(".").replace("s3a:", "s3:").rstrip("/"))


WITH_TABLE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
  source:
    meta_table:
      conn: $OPS_DB
      table: ops.files
      roots: [/data/exports, ./here, s3://bucket/exports/]
      uid: id
      item: file_location
      weight: null
      where:
        - {column: kind, operator: "=", value: order}
        - {column: size, operator: in, value: [1, 2]}
      imported: imported_at
      ceiling: settle
      settle: 20m
      on_bad_weight: 5
    format: csv
    options: {delimiter: ";"}
  batch: {min_weight: 1}
"""


def test_meta_table_with_required_keys_only_gets_the_defaults(tmp_path: Path) -> None:
    assert read_stream_file(stream_file(tmp_path, with_source(META_TABLE))).source == TableSource(
        table="t", roots=("file:///",), uid="uid", item="item", weight="weight"
    )


def test_meta_table_with_every_key(tmp_path: Path) -> None:
    path = stream_file(tmp_path, WITH_TABLE)
    assert read_stream_file(path).user_table == TableSource(
        table="ops.files",
        roots=("file:///data/exports", f"file://{tmp_path}/orders/here", "s3://bucket/exports"),
        conn="$OPS_DB",
        uid="id",
        item="file_location",
        weight=None,
        where=AllOf(
            (Condition("kind", Operator.EQUAL, "order"), Condition("size", Operator.IN, (1, 2)))
        ),
        imported="imported_at",
        ceiling=Strategy.SETTLE,
        settle=timedelta(minutes=20),
        on_bad_weight=5,
        format=SourceFormat.CSV,
        csv=CsvOptions(delimiter=";", is_delimiter_given=True),
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("$OPS_DB", "$OPS_DB"),
        ("${OPS_DB}", "$OPS_DB"),
        ("postgresql://reader@db.example/ops", "postgresql://reader@db.example/ops"),
        ("mysql://h:3306/d?init_command=a@b", "mysql://h:3306/d?init_command=a@b"),
        ("sqlite:///files.db?timeout=5", "sqlite:///{folder}/files.db?timeout=5"),
        ("sqlite:///my files.db", "sqlite:///{folder}/my%20files.db"),
        ("sqlite:///file:m.db?mode=ro&uri=true", "sqlite:///file:{folder}/m.db?mode=ro&uri=true"),
        ("sqlite:///file:/m.db?uri=true", "sqlite:///file:/m.db?uri=true"),
    ],
)
def test_connection_without_a_password_is_accepted(
    tmp_path: Path, written: str, expected: str
) -> None:
    text = with_source(f"meta_table: {{table: t, roots: [/], conn: '{written}'}}")
    table = read_stream_file(stream_file(tmp_path, text)).user_table
    assert table is not None
    assert table.conn == expected.format(folder=tmp_path / "orders")


def test_targets_keep_their_order(tmp_path: Path) -> None:
    text = with_lines(
        "key_properties: [id]",
        "targets:",
        "  warehouse: {postgres: {conn: $DW}}",
        "  dw: {postgres: {conn: '${DW}', schema: sales, table: o, mode: upsert}}",
        "  lake:",
        "    command: target-csv --log 'a b'",
        "    config: {output_path: /out, port: 5, password: '${PASSWORD}', nested: [$NAME]}",
        "    messages: record",
        "    timeout: 90s",
        "  other: {command: [target-x, --fast]}",
    )
    config = {"output_path": "/out", "port": 5, "password": "$PASSWORD", "nested": ["$NAME"]}
    targets = read_stream_file(stream_file(tmp_path, text)).targets
    assert targets == (
        PostgresTarget(name="warehouse", conn="$DW"),
        PostgresTarget(name="dw", conn="$DW", schema="sales", table="o", mode=WriteMode.UPSERT),
        SingerTarget(
            name="lake",
            command=("target-csv", "--log", "a b"),
            config=config,
            messages=MessageMode.RECORD,
            timeout=timedelta(seconds=90),
        ),
        SingerTarget(name="other", command=("target-x", "--fast")),
    )
    assert [target.keeps_last for target in targets] == [False, True, True, True]
