"""Targets in stream files: what they become, and the words with which mistakes are refused."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.load import MessageMode, PostgresTarget, SingerTarget, WriteMode
from batch_pipeline_tests.config.test_stream_file_mistakes import (
    refusal_of,
    stream_file,
    with_lines,
)

SECRET = "hunter2!"  # noqa: S105 - of nobody


def test_stream_file_without_targets_has_none(tmp_path: Path) -> None:
    """Expect loading to be something that one asks for."""
    assert read_stream_file(stream_file(tmp_path, with_lines())).targets == ()


def test_stream_file_with_a_postgres_target_gives_it(tmp_path: Path) -> None:
    """Expect the schema public, the stream's own table and append where nothing is said."""
    text = with_lines("targets: {warehouse: {postgres: {conn: $DW}}}")
    (target,) = read_stream_file(stream_file(tmp_path, text)).targets
    assert target == PostgresTarget(name="warehouse", conn="$DW")
    assert not target.keeps_last
    text = with_lines(
        "key_properties: [id]",
        "targets:",
        "  dw: {postgres: {conn: '${DW}', schema: sales, table: o, mode: upsert}}",
    )
    (target,) = read_stream_file(stream_file(tmp_path, text)).targets
    assert target == PostgresTarget(
        name="dw", conn="$DW", schema="sales", table="o", mode=WriteMode.UPSERT
    )
    assert target.keeps_last


def test_stream_file_with_singer_targets_gives_them_in_order(tmp_path: Path) -> None:
    """Expect a command line to be cut as a shell does, and a list to be taken as it is."""
    text = with_lines(
        "targets:",
        "  lake:",
        "    command: target-csv --log 'a b'",
        "    config: {output_path: /out, port: 5, password: '${PASSWORD}', nested: [$NAME]}",
        "    messages: record",
        "    timeout: 90s",
        "  other: {command: [target-x, --fast]}",
    )
    lake, other = read_stream_file(stream_file(tmp_path, text)).targets
    assert lake == SingerTarget(
        name="lake",
        command=("target-csv", "--log", "a b"),
        config={"output_path": "/out", "port": 5, "password": "$PASSWORD", "nested": ["$NAME"]},
        messages=MessageMode.RECORD,
        timeout=timedelta(seconds=90),
    )
    assert other == SingerTarget(name="other", command=("target-x", "--fast"))
    assert (lake.keeps_last, other.messages) == (True, MessageMode.AUTO)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("", "`` needs either `postgres` or `command`"),
        ("command: target-x, postgres: {conn: $DW}", "`` needs either `postgres` or `command`"),
        (
            "postgres: {conn: $DW}, messages: batch",
            "`` has `messages`, which goes with `command` only",
        ),
        ("postgres: {}", "`.postgres.conn` is missing"),
        (
            "postgres: {conn: 'postgresql://me:hunter2!@db/dw'}",
            "`.postgres.conn` is not a variable; expected $NAME of an environment variable",
        ),
        (
            "postgres: {conn: $DW, mode: merge}",
            "`.postgres.mode` is 'merge'; expected 'append' or 'upsert'",
        ),
        (
            "postgres: {conn: $DW, mode: upsert}",
            "`.postgres.mode` is 'upsert'; expected append, or `key_properties`",
        ),
        (
            "postgres: {conn: $DW, tabel: x}",
            "unknown key `tabel` in `.postgres`; did you mean `table`?",
        ),
        ("comand: x", "unknown key `comand` in ``; did you mean `command`?"),
        ("command: ''", "`.command` is empty"),
        ("command: []", "`.command` is empty"),
        ("command: 5", "`.command` is not a command; expected a line such as target-csv"),
        ('command: "target-x \'a"', "where a quote is not closed"),
        (
            "command: target-x --config x.json",
            "`.command` names a --config; write what is in that file below `config`",
        ),
        ("command: target-x, config: [a]", "`.config` is not a mapping"),
        ("command: target-x, config: {since: 2026-03-01}", "`.config` cannot be written as JSON"),
        (
            "command: target-x, config: {limits: [{max_age_seconds: .nan}]}",
            "`.config` cannot be written as JSON (Out of range float",
        ),
        (
            "command: target-x, config: {max_age_seconds: -.inf}",
            "`.config` cannot be written as JSON (Out of range float",
        ),
        (
            "command: ~/bin/target-x",
            "`.command` starts with '~/bin/target-x', but no shell expands ~; expected",
        ),
        (
            "command: target-x, config: {db: {password: 'hunter2!'}}",
            "`.config` holds a secret at db.password, which a stream file must not",
        ),
        (
            "command: target-x, config: {keys: [{api_key: 'hunter2!'}]}",
            "`.config` holds a secret at keys.api_key",
        ),
        (
            "command: target-x, config: {sqlalchemy_url: 'postgresql://me:hunter2!@db/dw'}",
            "`.config` holds a secret at sqlalchemy_url",
        ),
        (
            "command: target-x, messages: rows",
            "`.messages` is 'rows'; expected 'auto', 'batch' or 'record'",
        ),
        ("command: target-x, timeout: soon", "`.timeout` is 'soon'; expected a dur"),
        ("command: target-x, timeout: 0", "`` has a `timeout` of 0 s"),
    ],
)
def test_stream_file_with_a_wrong_target_is_refused_with_its_line(
    tmp_path: Path, target: str, problem: str
) -> None:
    """Expect the key in the words of the file, its line, and never a secret."""
    error = refusal_of(tmp_path, with_lines("targets:", f"  dw: {{{target}}}"))
    assert problem in error.problem.replace("targets.dw", "")
    assert error.line == 6
    assert SECRET not in str(error)


@pytest.mark.parametrize("name", ["'a b'", "-dw", "'é'"])
def test_stream_file_with_a_target_of_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    """Expect the name and what it may be."""
    error = refusal_of(tmp_path, with_lines("targets:", f"  {name}: {{command: target-x}}"))
    assert "expected 1 to 100 letters, digits" in error.problem
    assert error.line == 6
