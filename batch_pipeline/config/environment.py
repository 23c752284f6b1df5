"""Settings of the process: environment, dot-env files and arguments, with one precedence.

The environment is passed as an argument and never modified; nothing is read at import.
"""

import io
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated

from dotenv.parser import parse_stream
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from batch_pipeline.model.errors import SettingError, closest

PREFIX = "BATCH_PIPELINE_"
ENV_FILE = f"{PREFIX}ENV_FILE"
_NOT_IN_FILES = {
    ENV_FILE: "a dot-env file cannot name another one",
    f"{PREFIX}JAVA": "only the environment selects the Java of Spark",
}


# Removed settings of earlier releases, with the next step for each.
REMOVED = {
    f"{PREFIX}KEEP_LOGS": (
        "Remove it. Errors, logs and events are kept; larger batches (`batch.max_weight`, "
        "`batch.max_count`) cause fewer of them."
    )
}


_NO_USER = "its ~ names no user's home folder"


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(_NO_USER) from error


def _streams_folder(home: Path) -> Path:
    here, demo = Path.cwd() / "streams", home / "demo" / "streams"
    with suppress(OSError):  # a home that cannot be examined has no demo
        return demo if demo.is_dir() and not here.is_dir() else here
    return here


def _secret_url(pattern: str, expected: str) -> AfterValidator:
    """Return a validator that matches secrets against a pattern; errors never contain the value."""

    def check(secret: SecretStr) -> SecretStr:
        if not re.fullmatch(pattern, secret.get_secret_value(), re.DOTALL):
            raise ValueError(f"is not a valid {expected}")
        return secret

    return AfterValidator(check)


_DATABASE = "like postgresql://user:password@host:5432/database"
_PostgresUrl = Annotated[SecretStr, _secret_url(r"postgres(ql)?(\+.*?)?://.+", f"URL {_DATABASE}")]
_DatabaseUrl = Annotated[SecretStr, _secret_url(r"[^\W_][\w+]*://.*", f"database URL {_DATABASE}")]
_SparkConnectUrl = Annotated[
    SecretStr, _secret_url(r"sc://.*[^/].*", "Spark Connect URL like sc://host:15002/;token=…")
]


def _master(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; set a Spark master such as local[*] or spark://host:7077")
    if text.strip().startswith("sc://"):
        raise ValueError("is a Spark Connect address; set BATCH_PIPELINE_SPARK_REMOTE to it")
    return text.strip()


class Settings(BaseModel):
    """Validated settings of the process; secrets are hidden when printed."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=lambda: Path.cwd() / ".batch_pipeline"
    )
    """Folder of the embedded services; .batch_pipeline below the current one."""
    streams: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=lambda given: _streams_folder(given["home"])
    )
    """Folder with <name>/defs.yaml per stream; streams below the current one, or the demo's while
    there is no such folder."""
    inventory_conn: _PostgresUrl | None = None
    """Postgres URL of the inventory (default: the embedded server)."""
    meta_conn: _DatabaseUrl | None = None
    """URL of the meta tables' database (default: the inventory's)."""
    spark_remote: _SparkConnectUrl | None = None
    """Spark Connect URL (default: a local session)."""
    spark_master: Annotated[str, AfterValidator(_master)] = "local[*]"
    """Spark master (default: all cores of this machine)."""
    spark_packed: Annotated[Path, AfterValidator(_absolute)] | None = None
    """Archive of what executors import, written by `pack` (default: their own packages)."""
    spark_keep_minutes: Annotated[int, Field(ge=0, le=1440)] = 0
    """Idle minutes for which a command leaves its local Spark running for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A value with its name and its source."""

    name: str
    source: str
    value: object = dataclass_field(repr=False)


def load_settings(
    *,
    dot_env: Path | None = None,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str],
) -> Settings:
    """Merge all sources; for each value, the first source in this order wins.

    Order: `settings` (by field name), `environment`, `dot_env`, the file named by
    BATCH_PIPELINE_ENV_FILE in the environment, defaults. None and empty text count as not given.
    Values of dot-env files are taken literally (`${…}` is not expanded); relative paths are
    below the current folder. Other BATCH_PIPELINE_ variables of the environment are ignored.

    Raises:
        SettingError: a value is unusable, an argument or a name in a dot-env file is unknown, or a
            dot-env file cannot be read; names variable and source, never the value.
    """
    given: dict[str, _Given] = {}
    env_file = environment.get(ENV_FILE)
    if env_file:
        given |= _from_dot_env(Path(env_file), asked_by=ENV_FILE)
    if dot_env is not None:
        given |= _from_dot_env(dot_env, asked_by="dot_env")
    _refuse_removed(environment, "environment")
    for field in Settings.model_fields:
        if value := environment.get(name := _variable(field)):
            given[field] = _Given(name=name, source="environment", value=value)
    given |= _from_arguments(settings or {})
    try:
        return Settings.model_validate({field: one.value for field, one in given.items()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        one = given[str(first["loc"][0])]
        problem = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise SettingError(one.name, one.source, problem, "Correct it and run again.") from None
    except FileNotFoundError as error:
        problem, step = "the current folder was deleted", "Change to another one and run again."
        raise SettingError("relative paths", "of the settings", problem, step) from error


def _refuse_removed(names: Iterable[str], source: str) -> None:
    """Raise if a setting of an earlier release is given."""
    for name, step in REMOVED.items():
        if name in names:
            raise SettingError(name, source, "this setting was removed", step)


def _from_arguments(settings: Mapping[str, object]) -> dict[str, _Given]:
    given = {}
    for field, value in settings.items():
        if field not in Settings.model_fields:
            problem = "no such setting" + _suggestion(field, list(Settings.model_fields))
            raise SettingError(str(field), "settings argument", problem, "Correct the name.")
        if value not in (None, ""):
            given[field] = _Given(name=field, source="settings argument", value=value)
    return given


def _from_dot_env(path: Path, *, asked_by: str) -> dict[str, _Given]:
    fields = {_variable(field): field for field in Settings.model_fields}
    given = {}
    for binding in parse_stream(io.StringIO(_dot_env_text(path, asked_by))):
        source = f"{path}, line {_first_line(binding.original.string, binding.original.line)}"
        name = binding.key or ""
        if binding.error:
            step = "Write NAME=value, with quotes around a value of several words."
            raise SettingError("dot-env file", source, "this line cannot be understood", step)
        _refuse_removed([name], source)
        if name in fields and binding.value:
            given[fields[name]] = _Given(name=name, source=source, value=binding.value)
        elif name in _NOT_IN_FILES:
            raise SettingError(name, source, _NOT_IN_FILES[name], "Set it in the environment.")
        elif name not in fields and name.upper().startswith(PREFIX):
            problem = "no such setting" + _suggestion(name, list(fields))
            raise SettingError(name, source, problem, "Correct the name or remove the line.")
    return given


def _dot_env_text(path: Path, asked_by: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        usual = _NO_USER if isinstance(error, RuntimeError) else "it is not UTF-8 text"
        reason = getattr(error, "strerror", None) or usual
        raise SettingError(
            asked_by, str(path), f"this dot-env file cannot be read: {reason}", "Correct the path."
        ) from error


def _first_line(text: str, line: int) -> int:
    """Return the first line of a statement without the blank lines that the parser prepends."""
    return line + text[: len(text) - len(text.lstrip())].count("\n")


def _variable(field: str) -> str:
    return f"{PREFIX}{field.upper()}"


def _suggestion(name: object, known: list[str]) -> str:
    close = closest(name, known, cutoff=0.7)
    return f"; did you mean {close}?" if close else f" (known: {', '.join(known)})"
