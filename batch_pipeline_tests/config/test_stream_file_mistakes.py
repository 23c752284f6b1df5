"""Error messages for mistakes in stream files, with their line numbers."""

from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.errors import StreamFileError

MINIMAL = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
  source: {uri: ./landing}
"""
TARGETS = "targets: {dw: {postgres: {conn: $DW}}}"
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/landed"
# "Billion laughs": each list appears nine times in the next one, on the lines 2 to 7.
BILLION_LAUGHS = "".join(
    f"l{level}: &l{level} [{', '.join([f'*l{level - 1}' if level > 2 else '*a'] * 9)}]\n"
    for level in range(2, 8)
)


def stream_file(folder: Path, text: str = MINIMAL, name: str = "orders") -> Path:
    """Write a stream file into a streams folder and return its path."""
    path = folder / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_lines(*lines: str) -> str:
    """Return the minimal stream file with additional lines; the first of them is line 5."""
    return MINIMAL + "".join(f"  {line}\n" for line in lines)


def with_source(source: str, *lines: str) -> str:
    """Return a stream file with these source attributes on line 4."""
    return with_lines(*lines).replace("{uri: ./landing}", f"{{{source}}}")


def read_error(tmp_path: Path, text: str) -> StreamFileError:
    """Return the error of an invalid stream file, which must not show a secret."""
    with pytest.raises(StreamFileError) as caught:
        read_stream_file(stream_file(tmp_path, text))
    assert "hunter2" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("batch: {max_wieght: 1}", "key `max_wieght` in `batch`; did you mean `max_weight`?"),
        ("columns: {}", "unknown key `columns` in `attributes`; known keys: select, "),
        ("dagster: {owners: [ops]}", "`dagster.owners` is 'ops'; expected an e-mail address or"),
        ("dagster: {schedule: hourly}", "'hourly'; expected a cron schedule of five fields"),
        ("dagster: {schedule: 0 25 * * *}", "hour, '25', is within 0 to 23"),
        ("dagster: {spark_resource: my spark}", "`dagster.spark_resource` is 'my spark'"),
        ("dagster: {timezone: Mars/Olympus}", "`dagster.timezone` is 'Mars/Olympus'"),
        ("dagster: {timezone: Europe}", "`dagster.timezone` is 'Europe'; expected a name of the"),
        ("dagster: {max_quarantined_ratio: 2}", "is 2.0; expected 0 to 1"),
        ("encoding: {3: 4}", "the key 3 is not text; known keys: format, compression"),
        ("encoding: {format: xml}", "`encoding.format` is 'xml'; expected 'jsonl', 'parquet', 'a"),
        ("encoding: {compression: snappy}", "is 'snappy'; expected gzip or zstd or none"),
        ("encoding: {level: 10}", "`encoding.level` is 10; expected 0 to 9"),
        ("batch: {max_weight: 64M}", "`batch.max_weight` is '64M'; expected a size such as 64MiB"),
        ("batch: {max_weight: 0}", "`batch.max_weight` is 0; expected at least 1 byte"),
        ("batch: {max_count: yes}", "`batch.max_count` is True; expected a whole number"),
        ("batch: {max_wait: 5min}", "`batch.max_wait` is '5min'; expected a duration such as 5m"),
        ("batch: {max_weight: 1, min_weight: 2}", "is 2; expected between 0 and max_weight"),
        ("batch: {target_seconds: 60}", "`batch.target_seconds` was removed; choose `batch.max_w"),
        ("batch:", "`batch` is empty; expected keys and values"),
        ("key_properties: order_id", "`key_properties` is 'order_id'; expected a list"),
        ("key_properties: [a, 1]", "`key_properties[2]` is 1; expected text"),
        ("storage: {prefix: a/b}", "`storage.prefix` is 'a/b'; expected to match"),
        ("storage: {keep_loaded: 30d}", "is '30 days, 0:00:00'; expected none without `targets`"),
        ("storage: {archive: ./old}", "`storage.archive` was removed; copy files elsewhere before"),
        ("storage: {root: gs://bucket/out}", "cannot read or write; expected s3://bucket/prefix, "),
        ("on_bad_record: {max_bad_ratio: yes}", "is True; expected a valid number"),
        ("on_bad_record: {max_bad_ratio: 2}", "is 2; expected at most 1"),
        ("part_files: {max_bytes: 0}", "`part_files.max_bytes` is 0; expected at least 1"),
        ("lineage: [_item]", "`lineage[1]` is '_item'; expected '_item_id', "),
        ("lineage: [_item_id, _item_id]", "is ['_item_id', '_item_id']; expected names"),
        ("schema: {mode: declared}", "`schema.file` is missing; expected the path of a JSON"),
        ("schema: {file: no.json}", "schema.file is "),
        ("transform: shop.paid", "`transform` is 'shop.paid'; expected `package.module:function`"),
        ("stream: again", "`stream` is given twice (first on line 3)"),
        ("targets: []", "`targets` is []; expected keys and values"),
        ("targets: {'a b': {command: x}}", "a key of `targets` is 'a b'; expected 1 to 100 letter"),
        ("targets: {1: {command: x}}", "a key of `targets` is 1; expected text (in quotes"),
    ],
)
def test_invalid_attribute_is_rejected_with_its_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    error = read_error(tmp_path, with_lines("", line))
    assert error.line == 6
    assert problem in error.problem
    assert str(error).startswith(f"{tmp_path}/orders/defs.yaml:6: ")


NOT_A_LOCATION = "`source.uri` is not a usable location; expected "
META_TABLE = "meta_table: {table: t, roots: [/]}"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("uri: 's3://key:hunter2@bucket/x'", f"{NOT_A_LOCATION}s3://bucket"),
        ("uri: 's3://bucket/a/../hunter2'", f"{NOT_A_LOCATION}s3://bucket"),
        ("uri: 's3://b/hunter2'", f"{NOT_A_LOCATION}s3://bucket"),
        ("uri: 's3://bucket/hunter2#bytes=0-9'", f"{NOT_A_LOCATION}s3://"),
        ("uri: 'gs://k:hunter2@bucket/x'", "`source.uri` has the scheme gs://, which this release"),
        ("uri: 'https://hunter2.s3.amazonaws.com/x'", "has the scheme https://, which this"),
        ("uri: 'file://host:hunter2/x'", f"{NOT_A_LOCATION}a file:///… URI"),
        ("uri: 'file:x'", f"{NOT_A_LOCATION}a file:///… URI"),
        ("uri: 's3:/bucket/x'", f"{NOT_A_LOCATION}s3://bucket"),
        ("uri: '${LANDING}/x'", "`source.uri` starts with a variable, which is not expanded"),
        ("uri: '~no-such-user-hunter2/x'", NOT_A_LOCATION),
        ("uri: ''", "`source.uri` is ''; expected some text"),
        ("uri: x, options: {delimiter: ';;'}", "`source.options.delimiter` is ';;'; expected one"),
        ("uri: x, options: {charset: undefined}", "`source.options.charset` is 'undefined'; exp"),
        ("uri: x, options: {quote: ','}", "`source.options.quote` is ','; expected a character"),
        ("uri: x, include: []", "`source.include` is []; expected at least one entry"),
        ("uri: x, max_item_size: 65535", "`source.max_item_size` is 65535; expected"),
        ("uri: x, format: text", "`source.format` text was removed; convert the files to csv, or"),
        ("uri: x, options: {columns: []}", "`source.options.columns` was removed; convert the"),
        ("uri: x, listing: {order: ascending}", "`source.listing` is for buckets only"),
        (f"uri: x, events: {{queue: '{QUEUE}'}}", "`source.events` is for buckets only"),
        ("uri: 's3://b-1', listing: {relist: 1h}", "is '1:00:00'; expected none without `order:"),
        ("uri: 's3://b-1', listing: {order: ascending, relist: 0}", "is '0:00:00'; expected more"),
        (
            f"uri: 's3://b-1', listing: {{order: ascending}}, events: {{queue: '{QUEUE}'}}",
            "`source.listing.order` is 'ascending'; expected none with `source.events`",
        ),
        ("uri: 's3://b-1', events: {queue: landed}", "is not a usable queue; expected the URL"),
        ("uri: 's3://b-1', events: {queue: 'https://me:hunter2@sqs/1/x'}", "is not a usable queue"),
        ("uri: 's3://b-1', roots: [/data]", "`source.roots` is for the links of a folder; omit it"),
        ("", "`source.uri` is missing; expected it, or `source.meta_table`"),
        ("meta_table: {uid: id}", "`source.meta_table.table` is missing"),
        ("meta_table: {table: t}", "`source.meta_table.roots` is missing; expected the folders"),
        ("meta_table: {table: t, roots: [https://h/x]}", "roots[1]` has the scheme https://"),
        (f"roots: [/data], {META_TABLE}", "`source.roots` cannot be combined with"),
        (f"uri: x, {META_TABLE}", "`source.meta_table`; use one of them"),
        (f"include: [a], {META_TABLE}", "use `source.meta_table.where`"),
        (f"max_item_size: 1MiB, {META_TABLE}", "use rows whose locations name ranges of bytes"),
        (f"listing: {{order: ascending}}, {META_TABLE}", "`source.meta_table`; rows are read as"),
    ],
)
def test_invalid_source_is_rejected_with_its_line(
    tmp_path: Path, source: str, problem: str
) -> None:
    """A location may contain credentials and is not shown."""
    error = read_error(tmp_path, with_source(source))
    assert error.line == 4
    assert problem in error.problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tabel: x", "unknown key `tabel` in `source.meta_table`; did you mean `table`?"),
        ("item:", "`source.meta_table.item` is empty; expected text"),
        ("ceiling: settle", "`source.meta_table.ceiling` is 'settle'; expected another one, or "),
        ("settle: 5m", "`source.meta_table.settle` is '0:05:00'; expected none without "),
        ("where: kind = 1", "`source.meta_table.where` is 'kind = 1'; expected a list of"),
        ("where: [{column: a, operator: '==', value: 1}]", "where[1].operator` is '=='; expected"),
        ('conn: "postgresql://me:hunter2@db/ops"', "holds a password, which a stream file must"),
        ('conn: "postgresql://db/ops?password=hunter2"', "holds a password"),
        ('conn: "mysql+pymysql://me:hunter2@db/ops"', "holds a password"),
        ('conn: "postgresql://me:hun#t/e?r2@db/ops"', "holds a password"),
        ('conn: "postgresql://[hunter2/ops"', "is not a database URL; expected $NAME of an env"),
        ('conn: "me:hunter2@db/ops"', "is neither a variable nor a database URL; expected $NAME"),
        ('conn: "$hunter2-x"', "is neither a variable nor a database URL"),
    ],
)
def test_invalid_meta_table_is_rejected_with_its_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    table = f"\n    meta_table:\n      table: ops.files\n      roots: [/data]\n      {line}"
    error = read_error(tmp_path, MINIMAL.replace(" {uri: ./landing}", table))
    assert error.line == 8
    assert problem in error.problem


def test_invalid_filter_is_rejected_with_the_line_of_the_condition(tmp_path: Path) -> None:
    lines = ["where:", "  - {column: a, operator: is null}", "  - {column: b, operator: in}"]
    table = "\n    meta_table:\n      table: t\n      roots: [/]\n      " + "\n      ".join(lines)
    error = read_error(tmp_path, MINIMAL.replace(" {uri: ./landing}", table))
    assert error.line == 10
    assert error.problem.startswith("`source.meta_table.where[2].value` is None; expected a list")


def test_min_weight_requires_the_imported_column(tmp_path: Path) -> None:
    error = read_error(tmp_path, with_source(META_TABLE, "batch: {min_weight: 1}"))
    assert error.line == 5
    assert error.problem.startswith("`batch.min_weight` is 1; expected 0 without `source.meta_")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("", "`targets.dw` needs either `postgres` or `command`"),
        ("command: x, postgres: {conn: $DW}", "needs either `postgres` or `command`"),
        ("postgres: {conn: $DW}, messages: batch", "`messages`, which goes with `command` only"),
        ("postgres: {}", "`targets.dw.postgres.conn` is missing"),
        ("postgres: {conn: 'postgresql://me:hunter2@db/dw'}", "is not a variable; expected $NAME"),
        ("postgres: {conn: $DW, mode: upsert}", "'upsert'; expected append, or `key_properties`"),
        ("postgres: {conn: $DW, tabel: x}", "in `targets.dw.postgres`; did you mean `table`?"),
        ("comand: x", "unknown key `comand` in `targets.dw`; did you mean `command`?"),
        ("command: ''", "`targets.dw.command` is empty"),
        ("command: []", "`targets.dw.command` is empty"),
        ("command: 5", "is not a command; expected a line such as target-csv"),
        ('command: "target-x \'a"', "which has an unclosed quote"),
        ("command: target-x --config x.json", "contains --config; put the content of that file"),
        ("command: ~/bin/target-x", "starts with '~/bin/target-x', but no shell expands ~"),
        ("command: x, config: [a]", "`targets.dw.config` is not a mapping"),
        ("command: x, config: {since: 2026-03-01}", "cannot be written as JSON"),
        ("command: x, config: {limits: [{age: .nan}]}", "number that is not finite at limits.age"),
        ("command: x, config: {db: {password: 'hunter2!'}}", "holds a secret at db.password"),
        ("command: x, config: {keys: [{api_key: 'hunter2!'}]}", "holds a secret at keys.api_key"),
        ("command: x, config: {url: 'postgresql://me:hunter2@db/dw'}", "holds a secret at url"),
        ("command: x, config: {url: 'mysql://me:hunter/2@db/dw'}", "holds a secret at url"),
        ("command: x, timeout: soon", "`targets.dw.timeout` is 'soon'; expected a dur"),
        ("command: x, timeout: 0", "`targets.dw` has a `timeout` of 0 s"),
    ],
)
def test_invalid_target_is_rejected_with_its_line(
    tmp_path: Path, target: str, problem: str
) -> None:
    error = read_error(tmp_path, with_lines("targets:", f"  dw: {{{target}}}"))
    assert error.line == 6
    assert problem in error.problem


@pytest.mark.parametrize(
    ("source", "root"),
    [
        ("./landing", "./landing"),
        ("./landing", "landing/../landing/out/deep"),
        ("s3a://lake/in/", "s3://lake/in/out"),
        ("s3://lake", "s3://lake/out"),
        ("/", "/lake/out"),
    ],
)
def test_storage_root_inside_the_landing_is_rejected(
    tmp_path: Path, source: str, root: str
) -> None:
    text = with_source(f"uri: '{source}'", f"storage: {{root: '{root}'}}")
    error = read_error(tmp_path, text)
    assert error.line == 5
    assert error.problem.startswith("storage.root is ")
    assert "expected a location outside `source.uri` (" in error.problem


@pytest.mark.parametrize("name", ["a b", ".hidden", "-x", "é", "a" * 101, "a/b", ""])
def test_unsafe_stream_name_is_rejected(tmp_path: Path, name: str) -> None:
    error = read_error(tmp_path, MINIMAL.replace("orders", f'"{name}"'))
    assert (error.line, error.problem[:12]) == (3, "`stream` is ")


def test_list_with_a_wrong_entry_is_not_reported_as_empty(tmp_path: Path) -> None:
    assert read_error(tmp_path, with_lines("select: [2026]")).problem == (
        "`select[1]` is 2026; expected text (in quotes if YAML reads it as another type)"
    )


def test_invalid_property_is_reported_at_the_key_of_its_schema(tmp_path: Path) -> None:
    path = stream_file(tmp_path, with_lines("", "schema: {file: a.json}"))
    path.with_name("a.json").write_text('{"properties": {"a": {"type": "int"}}}')
    with pytest.raises(StreamFileError, match=r":6: schema\.file: property a: type is 'int'; exp"):
        read_stream_file(path)


def test_several_mistakes_are_listed_in_order(tmp_path: Path) -> None:
    text = "type: x.Y\nattributes:\n  streem: orders\n  batch:\n    max_count: 0\n"
    assert str(read_error(tmp_path, text)) == (
        f"{tmp_path}/orders/defs.yaml:1: `type` is 'x.Y'; expected 'batch_pipeline.BatchStream';\n"
        "  line 2: `stream` is missing;\n"
        "  line 2: `source` is missing;\n"
        "  line 3: unknown key `streem` in `attributes`; did you mean `stream`?;\n"
        "  line 5: `batch.max_count` is 0; expected at least 1. "
        "The stream was not loaded. Correct the file and run again."
    )
    assert "did you mean `batch`? The" in str(read_error(tmp_path, with_lines("bathc: {}")))


def test_more_than_ten_mistakes_are_truncated(tmp_path: Path) -> None:
    error = read_error(tmp_path, with_lines(*(f"unknown_key_{n}: 1" for n in range(14))))
    assert error.problem.count("unknown key") == 10
    assert error.problem.endswith(";\n  and 4 more")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "the file is empty"),
        ("\n- type: x\n", 2, "the file has no keys and values"),
        ("type: x\na: b: c\n", 2, "not valid YAML: mapping values are not allowed here"),
        ("type: x\n\ta: 1\n", 2, "(indent with spaces, not tabs)"),
        ("type: x\ninclude: [*.csv]\n", 2, "(write patterns that start with * in quotes)"),
        (MINIMAL + "---\n" + MINIMAL, 5, "a second document starts here"),
        ("type: x\na: \x01\n", 2, "a control character is not allowed"),
        ('type: x\na: "x\\0y"\n', 2, "a text has a NUL or an unpaired surrogate"),
        ('type: x\n"a\\ud800": 1\n', 2, "a text has a NUL or an unpaired surrogate"),
        ("type: !python/name:os.system x\n", 1, "could not determine a constructor"),
        ("type: 2026-13-01\n", None, "a value cannot be read"),
        ("[a]: 1\n", 1, "unhashable key"),
        ("type: &a [*a]\n", 1, "a value contains itself through an alias"),
        ("a: 1\nb: &b\n  <<: *b\n", 2, "a value contains itself through an alias"),
        ("a: &a [x, x]\n" + BILLION_LAUGHS, 6, "aliases expand this value to more than"),
        ("type: " + "[" * 500 + "]" * 500, None, "the values are nested too deeply"),
        ("type: !!int ''\n", None, "a value does not match its tag"),
        ("type: !!timestamp soon\n", None, "a value does not match its tag"),
    ],
)
def test_invalid_yaml_is_rejected(
    tmp_path: Path, text: str, line: int | None, problem: str
) -> None:
    error = read_error(tmp_path, text)
    assert error.line == line
    assert problem in error.problem


def test_invalid_utf8_is_rejected_with_its_line(tmp_path: Path) -> None:
    path = stream_file(tmp_path, MINIMAL)
    path.write_bytes(b"type: x\n# caf\xe9\n")
    with pytest.raises(StreamFileError, match=r"defs\.yaml:2: not UTF-8 text"):
        read_stream_file(path)
