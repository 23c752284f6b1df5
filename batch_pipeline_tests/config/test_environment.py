"""Settings from arguments, environment and dot-env files."""

import os
from pathlib import Path

import pytest

from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.model.errors import SettingError

PRIVATE_WORD = "hunter2"


def env_file(tmp_path: Path, text: str, name: str = "one.env") -> Path:
    """Write a dot-env file."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_without_any_source_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be configured: home and streams lie below the current folder."""
    monkeypatch.chdir(tmp_path)
    settings = load_settings(environment={})
    assert settings == Settings(
        home=Path.cwd() / ".batch_pipeline",
        streams=Path.cwd() / "streams",
        inventory_conn=None,
        meta_conn=None,
        spark_remote=None,
        spark_master="local[*]",
    )


def test_settings_from_environment_fill_every_field() -> None:
    """Each field has its variable."""
    settings = load_settings(
        environment={
            "BATCH_PIPELINE_HOME": "/h",
            "BATCH_PIPELINE_STREAMS": "/s",
            "BATCH_PIPELINE_INVENTORY_CONN": "postgresql://a:b@db/x",
            "BATCH_PIPELINE_META_CONN": "mysql+pymysql://a:b@db/y",
            "BATCH_PIPELINE_SPARK_REMOTE": "sc://spark:15002/;token=t",
            "BATCH_PIPELINE_SPARK_MASTER": "local[2]",
        }
    )
    assert (settings.home, settings.streams) == (Path("/h"), Path("/s"))
    secrets = (settings.inventory_conn, settings.meta_conn, settings.spark_remote)
    assert [secret.get_secret_value() for secret in secrets if secret is not None] == [
        "postgresql://a:b@db/x",
        "mysql+pymysql://a:b@db/y",
        "sc://spark:15002/;token=t",
    ]
    assert settings.spark_master == "local[2]"


@pytest.mark.parametrize(
    ("left_out", "master"),
    [(0, "local[1]"), (1, "local[2]"), (2, "local[3]"), (3, "local[4]"), (4, "local[*]")],
)
def test_settings_from_several_sources_take_the_first(
    tmp_path: Path, left_out: int, master: str
) -> None:
    """Argument before environment before dot-env before the named file before the default."""
    given = [f"local[{n}]" if n > left_out else "" for n in (1, 2, 3, 4)]
    named = env_file(tmp_path, f"BATCH_PIPELINE_SPARK_MASTER={given[3]}\n", "named.env")
    settings = load_settings(
        settings={"spark_master": given[0] or None},
        environment={
            "BATCH_PIPELINE_SPARK_MASTER": given[1],
            "BATCH_PIPELINE_ENV_FILE": str(named),
        },
        dot_env=env_file(tmp_path, f"BATCH_PIPELINE_SPARK_MASTER={given[2]}\n"),
    )
    assert settings.spark_master == master


def test_settings_from_several_sources_merge_value_by_value(tmp_path: Path) -> None:
    """A source that says nothing of a field leaves it to the next one."""
    settings = load_settings(
        settings={"home": "/h"},
        environment={"BATCH_PIPELINE_STREAMS": "/s"},
        dot_env=env_file(tmp_path, "BATCH_PIPELINE_SPARK_MASTER=yarn\nBATCH_PIPELINE_HOME=/x\n"),
    )
    assert (settings.home, settings.streams, settings.spark_master) == (
        Path("/h"),
        Path("/s"),
        "yarn",
    )


def test_settings_with_relative_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later change of the current folder changes no setting; ~ is the user's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/zoe")
    settings = load_settings(settings={"home": "a"}, environment={"BATCH_PIPELINE_STREAMS": "~/b"})
    assert (settings.home, settings.streams) == (Path.cwd() / "a", Path("/users/zoe/b"))


def test_settings_from_dot_env_take_values_literally_and_leave_environment_alone(
    tmp_path: Path,
) -> None:
    """A password with `${` stays as written, other programs' lines are skipped, nothing leaks."""
    before = dict(os.environ)
    url = "postgresql://a:${HOME}#b@db/x"
    text = f"# mine\nPOSTGRES_USER=me\nexport BATCH_PIPELINE_INVENTORY_CONN='{url}'\n"
    settings = load_settings(environment={}, dot_env=env_file(tmp_path, text))
    assert settings.inventory_conn is not None
    assert settings.inventory_conn.get_secret_value() == url
    assert dict(os.environ) == before


def test_settings_with_unknown_variable_in_environment_are_fine() -> None:
    """Other parts of the product read variables of their own."""
    load_settings(environment={"BATCH_PIPELINE_FAILPOINTS": "x=kill", "BATCH_PIPELINE_HOMES": "y"})


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("BATCH_PIPELINE_HOEM=/h", "did you mean BATCH_PIPELINE_HOME?"),
        ("batch_pipeline_home=/h", "(known: BATCH_PIPELINE_HOME, "),
        ("BATCH_PIPELINE_ENV_FILE=/x", "a dot-env file cannot name another one"),
    ],
)
def test_settings_with_wrong_name_in_dot_env_are_refused(
    tmp_path: Path, line: str, hint: str
) -> None:
    """A name of ours in a dot-env file that nothing reads is a mistake, told with its line."""
    path = env_file(tmp_path, f"A=1\n\n{line}\n")
    with pytest.raises(SettingError) as caught:
        load_settings(environment={}, dot_env=path)
    assert f"({path}, line 3)" in str(caught.value)
    assert hint in str(caught.value)


def test_settings_with_unreadable_dot_env_line_are_refused(tmp_path: Path) -> None:
    """A broken line is not skipped, and not repeated: it may hold a secret."""
    path = env_file(tmp_path, f'A=1\nBATCH_PIPELINE_META_CONN="{PRIVATE_WORD}\n')
    with pytest.raises(SettingError, match="line 2") as caught:
        load_settings(environment={}, dot_env=path)
    assert PRIVATE_WORD not in str(caught.value)


def test_settings_with_missing_dot_env_are_refused(tmp_path: Path) -> None:
    """A file that was asked for must be there; the message says who asked."""
    path = tmp_path / "no.env"
    with pytest.raises(SettingError) as by_argument:
        load_settings(environment={}, dot_env=path)
    with pytest.raises(SettingError) as by_variable:
        load_settings(environment={"BATCH_PIPELINE_ENV_FILE": str(path)})
    problem = f"({path}): this dot-env file cannot be read: No such file or directory. "
    assert str(by_argument.value).startswith(f"dot_env {problem}")
    assert str(by_variable.value).startswith(f"BATCH_PIPELINE_ENV_FILE {problem}")


def test_settings_with_unknown_argument_are_refused() -> None:
    """Arguments go by field name, and a misspelt one is told."""
    with pytest.raises(SettingError, match="did you mean spark_master") as caught:
        load_settings(settings={"spark_mastre": "x"}, environment={})
    assert caught.value.source == "settings argument"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCH_PIPELINE_INVENTORY_CONN", f"host=db password={PRIVATE_WORD}"),
        ("BATCH_PIPELINE_INVENTORY_CONN", f"mysql://a:{PRIVATE_WORD}@db/x"),
        ("BATCH_PIPELINE_META_CONN", PRIVATE_WORD),
        ("BATCH_PIPELINE_SPARK_REMOTE", f"spark://h/;token={PRIVATE_WORD}"),
        ("BATCH_PIPELINE_SPARK_REMOTE", "sc://"),
        ("BATCH_PIPELINE_SPARK_MASTER", " "),
        ("BATCH_PIPELINE_HOME", "~nobody-of-that-name/x"),
    ],
)
def test_settings_with_unusable_value_name_variable_and_source_only(
    tmp_path: Path, variable: str, value: str
) -> None:
    """A refused value is told by its name and where it was given; secrets never show."""
    path = env_file(tmp_path, f'{variable}="{value}"\n')
    sources: list[tuple[str, dict[str, str], Path | None]] = [
        ("environment", {variable: value}, None),
        (f"{path}, line 1", {}, path),
    ]
    for source, environment, dot_env in sources:
        with pytest.raises(SettingError) as caught:
            load_settings(environment=environment, dot_env=dot_env)
        assert str(caught.value).startswith(f"{variable} ({source}): ")
        assert PRIVATE_WORD not in str(caught.value)
        assert caught.value.__cause__ is None


def test_settings_hide_their_secrets_when_printed() -> None:
    """A settings object may appear in a log."""
    url = f"postgresql://a:{PRIVATE_WORD}@db/x"
    settings = load_settings(environment={"BATCH_PIPELINE_INVENTORY_CONN": url})
    assert PRIVATE_WORD not in f"{settings!r} {settings} {settings.model_dump_json()}"
