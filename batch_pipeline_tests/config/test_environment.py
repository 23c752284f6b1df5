"""Settings from arguments, environment variables and dot-env files."""

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.model.errors import SettingError

SENSITIVE = "hunter2"


def env_file(tmp_path: Path, text: str, name: str = "settings.env") -> Path:
    """Write a dot-env file and return its path."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_without_sources_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_every_field_is_read_from_its_environment_variable() -> None:
    values = {
        "home": "/h",
        "streams": "/s",
        "inventory_conn": "postgresql://a:b@db/x",
        "meta_conn": "mysql+pymysql://a:b@db/y",
        "spark_remote": "sc://spark:15002/;token=t",
        "spark_master": "local[2]",
        "spark_packed": "/p",
        "spark_keep_minutes": "5",
    }
    variables = {f"BATCH_PIPELINE_{name.upper()}": value for name, value in values.items()}
    settings = load_settings(environment=variables)
    assert {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in settings
    } == values


@pytest.mark.parametrize(
    ("sources_left_out", "master"),
    [(0, "local[1]"), (1, "local[2]"), (2, "local[3]"), (3, "local[4]"), (4, "local[*]")],
)
def test_first_source_with_a_value_takes_precedence(
    tmp_path: Path, sources_left_out: int, master: str
) -> None:
    """The order is argument, environment, `dot_env`, `BATCH_PIPELINE_ENV_FILE`, default."""
    values = [f"local[{n}]" if n > sources_left_out else "" for n in (1, 2, 3, 4)]
    named = env_file(tmp_path, f"BATCH_PIPELINE_SPARK_MASTER={values[3]}\n", "named.env")
    settings = load_settings(
        settings={"spark_master": values[0]},
        environment={
            "BATCH_PIPELINE_SPARK_MASTER": values[1],
            "BATCH_PIPELINE_ENV_FILE": str(named),
        },
        dot_env=env_file(tmp_path, f"BATCH_PIPELINE_SPARK_MASTER={values[2]}\n"),
    )
    assert settings.spark_master == master


def test_relative_paths_and_tilde_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/zoe")
    settings = load_settings(settings={"home": "a"}, environment={"BATCH_PIPELINE_STREAMS": "~/b"})
    assert (settings.home, settings.streams) == (Path.cwd() / "a", Path("/users/zoe/b"))


def test_dot_env_values_are_literal_and_environment_is_unchanged(tmp_path: Path) -> None:
    """Values are not interpolated, and lines of other programs are skipped."""
    before = dict(os.environ)
    url = "postgresql://a:${HOME}#b@db/x"
    text = f"# comment\nPOSTGRES_USER=me\nexport BATCH_PIPELINE_INVENTORY_CONN='{url}'\n"
    settings = load_settings(environment={}, dot_env=env_file(tmp_path, text))
    assert settings.inventory_conn is not None
    assert settings.inventory_conn.get_secret_value() == url
    assert dict(os.environ) == before


def test_unknown_environment_variable_is_ignored() -> None:
    """Other parts of the product read their own variables."""
    load_settings(environment={"BATCH_PIPELINE_FAILPOINTS": "x=kill", "BATCH_PIPELINE_HOMES": "y"})


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("BATCH_PIPELINE_HOEM=/h", "did you mean BATCH_PIPELINE_HOME? Nothing was started."),
        ("batch_pipeline_home=/h", "(known: BATCH_PIPELINE_HOME, "),
        ("BATCH_PIPELINE_ENV_FILE=/x", "a dot-env file cannot name another one"),
        ("BATCH_PIPELINE_JAVA=bundled", "Set it in the environment."),
    ],
)
def test_unknown_name_in_dot_env_is_rejected_with_its_line(
    tmp_path: Path, line: str, hint: str
) -> None:
    path = env_file(tmp_path, f"A=1\n\n{line}\n")
    with pytest.raises(SettingError) as caught:
        load_settings(environment={}, dot_env=path)
    assert f"({path}, line 3)" in str(caught.value)
    assert hint in str(caught.value)


def test_home_that_cannot_be_examined_has_no_demo_streams() -> None:
    """The first command that uses the home reports the reason."""
    settings = load_settings(environment={"BATCH_PIPELINE_HOME": f"/{'x' * 300}"})
    assert settings.streams == Path.cwd() / "streams"


def test_malformed_dot_env_line_is_rejected_without_showing_it(tmp_path: Path) -> None:
    path = env_file(tmp_path, f'A=1\nBATCH_PIPELINE_META_CONN="{SENSITIVE}\n')
    with pytest.raises(SettingError, match="line 2") as caught:
        load_settings(environment={}, dot_env=path)
    assert SENSITIVE not in str(caught.value)


def test_missing_dot_env_file_is_rejected(tmp_path: Path) -> None:
    """The message names the argument or variable that requested the file."""
    path = tmp_path / "no.env"
    with pytest.raises(SettingError) as by_argument:
        load_settings(environment={}, dot_env=path)
    with pytest.raises(SettingError) as by_variable:
        load_settings(environment={"BATCH_PIPELINE_ENV_FILE": str(path)})
    problem = f"({path}): this dot-env file cannot be read: No such file or directory. "
    assert str(by_argument.value).startswith(f"dot_env {problem}")
    assert str(by_variable.value).startswith(f"BATCH_PIPELINE_ENV_FILE {problem}")


def test_deleted_current_folder_and_unknown_user_are_rejected_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    for variables in ({}, {"BATCH_PIPELINE_HOME": "here", "BATCH_PIPELINE_STREAMS": "/s"}):
        with pytest.raises(SettingError, match="the current folder was deleted"):
            load_settings(environment=variables)
    with pytest.raises(SettingError, match="cannot be read: its ~ names no user's home folder"):
        load_settings(environment={"BATCH_PIPELINE_ENV_FILE": "~nosuch/x"})


def test_unknown_settings_argument_is_rejected() -> None:
    with pytest.raises(SettingError, match="did you mean spark_master") as caught:
        load_settings(settings={"spark_mastre": "x"}, environment={})
    assert caught.value.source == "settings argument"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCH_PIPELINE_INVENTORY_CONN", f"host=db password={SENSITIVE}"),
        ("BATCH_PIPELINE_INVENTORY_CONN", f"mysql://a:{SENSITIVE}@db/x"),
        ("BATCH_PIPELINE_META_CONN", SENSITIVE),
        ("BATCH_PIPELINE_SPARK_REMOTE", f"spark://h/;token={SENSITIVE}"),
        ("BATCH_PIPELINE_SPARK_REMOTE", "sc://"),
        ("BATCH_PIPELINE_SPARK_MASTER", " "),
        ("BATCH_PIPELINE_HOME", "~no-such-user/x"),
    ],
)
def test_invalid_value_is_rejected_without_showing_it(
    tmp_path: Path, variable: str, value: str
) -> None:
    """The message names the variable and its source."""
    path = env_file(tmp_path, f'{variable}="{value}"\n')
    sources: list[tuple[str, dict[str, str], Path | None]] = [
        ("environment", {variable: value}, None),
        (f"{path}, line 1", {}, path),
    ]
    for source, environment, dot_env in sources:
        with pytest.raises(SettingError) as caught:
            load_settings(environment=environment, dot_env=dot_env)
        assert str(caught.value).startswith(f"{variable} ({source}): ")
        assert SENSITIVE not in str(caught.value)
        assert caught.value.__cause__ is None


def test_printed_settings_hide_secrets() -> None:
    url = f"postgresql://a:{SENSITIVE}@db/x"
    settings = load_settings(environment={"BATCH_PIPELINE_INVENTORY_CONN": url})
    assert SENSITIVE not in f"{settings!r} {settings} {settings.model_dump_json()}"
