"""Stream files whose items are listed by a table of the user's own."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.filter import AllOf, Condition, Operator
from batch_pipeline.model.stream import CsvOptions, SourceFormat, Strategy, TableSource
from batch_pipeline_tests.config.test_stream_file_mistakes import refusal_of, stream_file

MINIMAL = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
  source:
    meta_table:
      table: ops.files
      roots: [/data/exports]
"""

FULL = """\
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


def with_keys(*lines: str) -> str:
    """Return the minimal file with more keys of the table; the first of them is on line 8."""
    return MINIMAL + "".join(f"      {line}\n" for line in lines)


def test_table_by_its_name_alone_takes_the_defaults(tmp_path: Path) -> None:
    """Expect the columns to go by the names of their roles, in the usual database."""
    assert read_stream_file(stream_file(tmp_path, MINIMAL)).source == TableSource(
        table="ops.files", roots=("file:///data/exports",), uid="uid", item="item", weight="weight"
    )


def test_table_with_every_key_gives_all_of_them(tmp_path: Path) -> None:
    """Expect no key to be read and then dropped."""
    stream = read_stream_file(stream_file(tmp_path, FULL))
    assert stream.user_table == TableSource(
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
        ('"${OPS_DB}"', "$OPS_DB"),
        ("postgresql://reader@db.example/ops", "postgresql://reader@db.example/ops"),
        ("sqlite:////data/files.db", "sqlite:////data/files.db"),
        ("sqlite:///files.db?timeout=5", "sqlite:///{folder}/files.db?timeout=5"),
        ('"sqlite:///my files.db"', "sqlite:///{folder}/my%20files.db"),
    ],
)
def test_connection_without_a_password_is_taken(
    tmp_path: Path, written: str, expected: str
) -> None:
    """Expect both ways to write a variable, and a SQLite file to be beside the stream file."""
    table = read_stream_file(stream_file(tmp_path, with_keys(f"conn: {written}"))).user_table
    assert table is not None
    assert table.conn == expected.format(folder=tmp_path / "orders")


@pytest.mark.parametrize(
    ("conn", "problem"),
    [
        ("postgresql://me:hunter2@db/ops", "holds a password, which a stream file must not"),
        ("postgresql://db/ops?password=hunter2", "holds a password"),
        ("mysql+pymysql://me:hunter2@db/ops", "holds a password"),
        ("postgresql://[hunter2/ops", "is not a database URL"),
        ("me:hunter2@db/ops", "is neither a variable nor a database URL"),
        ("$hunter2-x", "is neither a variable nor a database URL"),
    ],
)
def test_connection_that_may_hold_a_password_is_refused_unseen(
    tmp_path: Path, conn: str, problem: str
) -> None:
    """Expect the advice to take a variable, and the text not to be repeated."""
    refusal = refusal_of(tmp_path, with_keys(f'conn: "{conn}"'))
    assert refusal.line == 8
    assert refusal.problem.startswith(f"`source.meta_table.conn` {problem}")
    assert "$NAME of an environment variable" in refusal.problem
    assert "hunter2" not in str(refusal)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tabel: x", "unknown key `tabel` in `source.meta_table`; did you mean `table`?"),
        ("uid: ''", "`source.meta_table.uid` is ''; expected some text"),
        ("item:", "`source.meta_table.item` is empty; expected text"),
        ("ceiling: best", "`source.meta_table.ceiling` is 'best'; expected 'locks', "),
        ("ceiling: settle", "`source.meta_table.ceiling` is 'settle'; expected another one, or "),
        ("settle: 5min", "`source.meta_table.settle` is '5min'; expected a duration such as 5m"),
        ("settle: 5m", "`source.meta_table.settle` is '0:05:00'; expected none without "),
        ("on_bad_weight: -1", "`source.meta_table.on_bad_weight` is -1; expected at least 0"),
        ("where: kind = 1", "`source.meta_table.where` is 'kind = 1'; expected a list of"),
        (
            "where: [{column: a, operator: '==', value: 1}]",
            "`source.meta_table.where[1].operator` is '=='; expected one of '=', ",
        ),
    ],
)
def test_table_with_a_mistake_is_refused_with_its_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    """Expect the key with its path, what is there, and what may be there."""
    refusal = refusal_of(tmp_path, with_keys(line))
    assert (refusal.line, refusal.problem[: len(problem)]) == (8, problem)


def test_filter_with_a_mistake_names_the_line_of_the_condition(tmp_path: Path) -> None:
    """Expect the second of two conditions to be told by its own line."""
    lines = ["where:", "  - {column: a, operator: is null}", "  - {column: b, operator: in}"]
    refusal = refusal_of(tmp_path, with_keys(*lines))
    assert refusal.line == 10
    assert refusal.problem.startswith("`source.meta_table.where[2].value` is None; expected a list")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "`.uri` is missing; expected it, or `.meta_table`"),
        ("meta_table: {uid: id}", "`.meta_table.table` is missing"),
        ("meta_table: {table: t}", "`.meta_table.roots` is missing; expected the places"),
        ("meta_table: {table: t, roots: []}", "`.meta_table.roots` is missing; expected the place"),
        (
            "meta_table: {table: t, roots: [https://host/x]}",
            "`.meta_table.roots[1]` has the scheme https://, which this release cannot read",
        ),
        ("uri: 's3://bucket', roots: [/data]", "`.roots` says where links lead to; expected none"),
        *(
            (
                f"{given}, meta_table: {{table: t, roots: [/]}}",
                f"`.{given.split(':')[0]}` cannot stand beside `.meta_table`; expected {needed}",
            )
            for given, needed in (
                ("roots: [/data]", "`.meta_table.roots`"),
                ("uri: x", "one of them"),
                ("include: [a]", "`.meta_table.where` chooses rows"),
                ("exclude: [a]", "`.meta_table.where` chooses rows"),
                ("max_item_size: 1MiB", "rows whose locations name ranges of bytes"),
                ("listing: {order: ascending}", "rows as they come"),
            )
        ),
    ],
)
def test_source_needs_exactly_one_place(tmp_path: Path, source: str, problem: str) -> None:
    """Expect a folder or a table, and name patterns for folders only."""
    text = MINIMAL.partition("  source:")[0] + f"  source: {{{source}}}\n"
    refusal = refusal_of(tmp_path, text)
    assert refusal.line == 4
    assert refusal.problem.replace("source.", ".").startswith(problem)


def test_waiting_for_more_files_needs_the_column_of_insert_times(tmp_path: Path) -> None:
    """Expect `min_weight` to be refused where nothing tells how long a row has waited."""
    refusal = refusal_of(tmp_path, MINIMAL + "  batch: {min_weight: 1}\n")
    assert refusal.line == 8
    assert refusal.problem.startswith("`batch.min_weight` is 1; expected 0 without `source.meta_")
