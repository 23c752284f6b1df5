"""Mistakes in stream files, and the words and lines with which they are refused."""

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
# Each list stands nine times in the next one, on the lines 2 to 7.
LAUGHS = "".join(
    f"l{level}: &l{level} [{', '.join([f'*l{level - 1}' if level > 2 else '*a'] * 9)}]\n"
    for level in range(2, 8)
)


def stream_file(folder: Path, text: str = MINIMAL, name: str = "orders") -> Path:
    """Write a stream file into a streams folder."""
    path = folder / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_lines(*lines: str) -> str:
    """Return the minimal stream file with more lines; the first of them is line 5."""
    return MINIMAL + "".join(f"  {line}\n" for line in lines)


def refusal_of(tmp_path: Path, text: str) -> StreamFileError:
    """Read a stream file that must be refused."""
    with pytest.raises(StreamFileError) as caught:
        read_stream_file(stream_file(tmp_path, text))
    return caught.value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "batch: {max_wieght: 1}",
            "unknown key `max_wieght` in `batch`; did you mean `max_weight`?",
        ),
        (
            "dagster: {partition_per_run: 1}",
            "unknown key `partition_per_run` in `dagster`; did you mean `partitions_per_run`?",
        ),
        (
            "dagster: {owners: [ops]}",
            "`dagster.owners` is 'ops'; expected an e-mail address or team:name",
        ),
        (
            "dagster: {schedule: hourly}",
            (
                "`dagster.schedule` is 'hourly'; expected a cron line of five fields, for example "
                "0 6 * * *"
            ),
        ),
        ("dagster: {timezone: Mars/Olympus}", "`dagster.timezone` is 'Mars/Olympus'"),
        (
            "dagster: {max_quarantined_ratio: 2}",
            "`dagster.max_quarantined_ratio` is 2.0; expected 0 to 1",
        ),
        ("encoding: {3: 4}", "the key 3 is not text; known keys: format, compression"),
        ("batch: {max_weight: 64M}", "`batch.max_weight` is '64M'; expected a size such as 64MiB"),
        ("batch: {max_weight: 0}", "`batch.max_weight` is 0; expected at least 1 byte"),
        ("batch: {max_count: 0}", "`batch.max_count` is 0; expected at least 1"),
        ("batch: {max_count: yes}", "`batch.max_count` is True; expected a whole number"),
        ('batch: {max_count: "7"}', "`batch.max_count` is '7'; expected a whole number"),
        ("batch: {max_wait: 5min}", "`batch.max_wait` is '5min'; expected a duration such as 5m"),
        (
            "batch: {max_weight: 1, min_weight: 2}",
            "`batch.min_weight` is 2; expected between 0 and max_weight",
        ),
        (
            "batch: {target_seconds: 60}",
            (
                "`batch.target_seconds` was removed; choose `batch.max_weight` and "
                "`batch.max_count` instead"
            ),
        ),
        ("batch:", "`batch` is empty; expected keys and values"),
        (
            "encoding: {format: xml}",
            "`encoding.format` is 'xml'; expected 'jsonl', 'parquet', 'arrow' or",
        ),
        (
            "encoding: {compression: snappy}",
            "`encoding.compression` is 'snappy'; expected gzip or zstd or none",
        ),
        ("encoding: {level: 10}", "`encoding.level` is 10; expected 0 to 9"),
        ("key_properties: order_id", "`key_properties` is 'order_id'; expected a list"),
        ("key_properties: [a, 1]", "`key_properties[2]` is 1; expected text"),
        ("storage: {prefix: a/b}", "`storage.prefix` is 'a/b'; expected to match"),
        ("on_bad_file: {missing: drop}", "`on_bad_file.missing` is 'drop'; expected 'fail',"),
        ("dagster: {partitions_per_run: 0}", "is 0; expected at least 1"),
        ("dagster: {runs_at_once: 0}", "is 0; expected at least 1"),
        ("on_bad_record: {max_bad_records: -1}", "is -1; expected at least 0"),
        ("part_files: {max_bytes: 0}", "`part_files.max_bytes` is 0; expected at least 1"),
        ("on_bad_record: {max_bad_ratio: 2}", "`on_bad_record.max_bad_ratio` is 2; expected at"),
        ("on_nonfinite: zero", "`on_nonfinite` is 'zero'; expected 'quarantine', 'null' or"),
        ("lineage: [_item]", "`lineage[1]` is '_item'; expected '_item_id', "),
        ("lineage: [_item_id, _item_id]", "`lineage` is ['_item_id', '_item_id']; expected names"),
        ("schema: {mode: declared}", "`schema.file` is missing; expected the path of a JSON"),
        ("schema: {mod: infer}", "unknown key `mod` in `schema`; did you mean `mode`?"),
        ("schema: {file: no.json}", "schema.file is "),
        ("flattening_max_depth: -1", "`flattening_max_depth` is -1; expected at least 0"),
        ("columns: {}", "unknown key `columns` in `attributes`; known keys: select, "),
        ("stream: again", "`stream` is given twice (first on line 3)"),
    ],
)
def test_stream_file_with_a_mistake_is_refused_with_its_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    """The message names file, line, key, what is there and what may be there."""
    refusal = refusal_of(tmp_path, with_lines("", line))
    assert refusal.line == 6
    assert problem in refusal.problem
    assert str(refusal).startswith(f"{tmp_path}/orders/defs.yaml:6: ")


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        (
            "s3://key:hunter2@bucket/x",
            "`source.uri` is not a usable location; expected s3://bucket",
        ),
        ("s3://bucket/a/../hunter2", "`source.uri` is not a usable location; expected s3://bucket"),
        ("s3://b/hunter2", "`source.uri` is not a usable location; expected s3://bucket"),
        ("s3://bucket/hunter2#bytes=0-9", "`source.uri` is not a usable location; expected s3://"),
        ("gs://k:hunter2@bucket/x", "`source.uri` has the scheme gs://, which this release cannot"),
        ("abfss://hunter2/x", "`source.uri` has the scheme abfss://, which this release cannot"),
        ("hdfs://hunter2/x", "`source.uri` has the scheme hdfs://, which this release cannot"),
        ("https://hunter2.s3.amazonaws.com/x", "has the scheme https://, which this release"),
        (
            "file://host:hunter2/x",
            "`source.uri` is not a usable location; expected a file:///… URI",
        ),
        ("file:x", "`source.uri` is not a usable location; expected a file:///… URI"),
        ("~no-such-user-hunter2/x", "`source.uri` is not a usable location"),
        ("", "`source.uri` is ''; expected some text"),
    ],
)
def test_stream_file_with_unsupported_location_is_refused(
    tmp_path: Path, uri: str, problem: str
) -> None:
    """The message says what is supported; a location may hold credentials and is not repeated."""
    refusal = refusal_of(tmp_path, MINIMAL.replace("./landing", f'"{uri}"'))
    assert refusal.line == 4
    assert problem in refusal.problem
    assert "hunter2" not in str(refusal)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{uri: x, options: {delimiter: ";;"}}',
            "`source.options.delimiter` is ';;'; expected one ASCII",
        ),
        ("{uri: x, options: {quote: ','}}", "`source.options.quote` is ','; expected another than"),
        ("{uri: x, include: []}", "`source.include` is []; expected at least one entry"),
        ("{include: [a]}", "`source.uri` is missing"),
        ("{uri: x, max_item_size: 65535}", "`source.max_item_size` is 65535; expected"),
    ],
)
def test_stream_file_with_unusable_source_is_refused(
    tmp_path: Path, line: str, problem: str
) -> None:
    """What is wrong in a nested place is told with its whole path."""
    refusal = refusal_of(tmp_path, MINIMAL.replace("{uri: ./landing}", line))
    assert (refusal.line, refusal.problem[: len(problem)]) == (4, problem)


@pytest.mark.parametrize("name", ["a b", ".hidden", "-x", "é", "a" * 101, "a/b", ""])
def test_stream_file_with_unsafe_name_is_refused(tmp_path: Path, name: str) -> None:
    """A stream's name ends up in file names."""
    refusal = refusal_of(tmp_path, MINIMAL.replace("orders", f'"{name}"'))
    assert (refusal.line, refusal.problem[:12]) == (3, "`stream` is ")


def test_stream_file_with_several_mistakes_tells_them_all_in_order(tmp_path: Path) -> None:
    """One look at the message is enough to correct the file."""
    text = "type: x.Y\nattributes:\n  streem: orders\n  batch:\n    max_count: 0\n"
    assert str(refusal_of(tmp_path, text)) == (
        f"{tmp_path}/orders/defs.yaml:1: `type` is 'x.Y'; expected 'batch_pipeline.BatchStream';\n"
        "  line 2: `stream` is missing;\n"
        "  line 2: `source` is missing;\n"
        "  line 3: unknown key `streem` in `attributes`; did you mean `stream`?;\n"
        "  line 5: `batch.max_count` is 0; expected at least 1. "
        "The stream was not loaded. Correct the file and run again."
    )


def test_stream_file_with_very_many_mistakes_tells_the_first_ten(tmp_path: Path) -> None:
    """A file of another kind does not fill the screen."""
    refusal = refusal_of(tmp_path, with_lines(*(f"unknown_key_{n}: 1" for n in range(14))))
    assert refusal.problem.count("unknown key") == 10
    assert refusal.problem.endswith(";\n  and 4 more")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "the file is empty"),
        ("# nothing\n\n", None, "the file is empty"),
        ("hello\n", 1, "the file has no keys and values"),
        ("\n- type: x\n", 2, "the file has no keys and values"),
        ("type: x\na: b: c\n", 2, "not valid YAML: mapping values are not allowed here"),
        ("type: x\n\ta: 1\n", 2, "(indent with spaces, not tabs)"),
        ("type: x\ninclude: [*.csv]\n", 2, "(write patterns that start with * in quotes)"),
        (MINIMAL + "---\n" + MINIMAL, 5, "a second document starts here"),
        ("type: x\na: \x01\n", 2, "a control character is not allowed"),
        ('type: x\na: "x\\0y"\n', 2, "a text has a NUL or half of a surrogate pair"),
        ('type: x\n"a\\ud800": 1\n', 2, "a text has a NUL or half of a surrogate pair"),
        ("type: !python/name:os.system x\n", 1, "could not determine a constructor"),
        ("type: 2026-13-01\n", None, "a value cannot be read"),
        ("[a]: 1\n", 1, "unhashable key"),
        ("type: &a [*a]\n", 1, "a value contains itself through an alias"),
        ("a: 1\nb: &b\n  <<: *b\n", 2, "a value contains itself through an alias"),
        ("a: &a [x, x]\n" + LAUGHS, 6, "aliases make more than 100000"),
        ("type: " + "[" * 2000 + "]" * 2000, None, "the values are nested too deeply"),
        ("type: !!int ''\n", None, "a value does not match its tag"),
        ("type: !!bool maybe\n", None, "a value does not match its tag"),
        ("type: !!timestamp soon\n", None, "a value does not match its tag"),
    ],
)
def test_stream_file_that_is_no_mapping_in_yaml_is_refused(
    tmp_path: Path, text: str, line: int | None, problem: str
) -> None:
    """Broken text is told in the same form as a wrong key."""
    refusal = refusal_of(tmp_path, text)
    assert refusal.line == line
    assert problem in refusal.problem


@pytest.mark.parametrize(
    ("source", "removed"),
    [
        ("format: text", "`source.format` text was removed"),
        ("options: {columns: []}", "`source.options.columns` was removed"),
    ],
)
def test_stream_file_with_fixed_width_text_is_refused_and_names_csv(
    tmp_path: Path, source: str, removed: str
) -> None:
    text = MINIMAL.replace("uri: ./landing", f"uri: ./landing, {source}")
    refusal = refusal_of(tmp_path, text)
    assert refusal.problem.startswith(f"{removed}; convert the files to csv, or read each line")


def test_stream_file_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    """Only UTF-8 is read, so that names mean the same everywhere."""
    path = stream_file(tmp_path, MINIMAL)
    path.write_bytes(b"type: x\n# caf\xe9\n")
    with pytest.raises(StreamFileError, match=r"defs\.yaml:2: not UTF-8 text"):
        read_stream_file(path)
