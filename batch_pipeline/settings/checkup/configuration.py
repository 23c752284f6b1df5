"""Looks at variables: what was given, what means nothing, and who may read it. No value is told."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from batch_pipeline.model import failpoint
from batch_pipeline.model.checks import Finding, fine, warning
from batch_pipeline.settings.environment import ENV_FILE, PREFIX, Settings
from batch_pipeline.spark.sessions.java import JAVA_VARIABLE

_SUBJECT = "settings"
_OTHERS = (ENV_FILE, JAVA_VARIABLE, failpoint.VARIABLE, f"{PREFIX}SERVER_MARK")
_OF_OTHERS = 0o077


def check_configuration(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the variables of this process and at the dot-env file that it was given."""
    fields = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    known = [*fields, *_OTHERS]
    given = sorted(name for name in environment if name.startswith(PREFIX) and environment[name])
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            text = f"{name} is set and means nothing to this release.{meant} Correct or unset it."
            yield warning(_SUBJECT, text)
    if environment.get(failpoint.VARIABLE):
        text = f"{failpoint.VARIABLE} is set: processes end or wait on purpose. Unset it."
        yield warning(_SUBJECT, text)
    yield from _dot_env(environment)
    used = ", ".join(name for name in given if name in known) or "none"
    text = f"home {settings.home}, streams {settings.streams}; variables that are set: {used}."
    yield fine(_SUBJECT, text)


def _dot_env(environment: Mapping[str, str]) -> Iterator[Finding]:
    name = environment.get(ENV_FILE)
    if not name:
        return
    mode = Path(name).expanduser().stat().st_mode
    if mode & _OF_OTHERS:
        text = (
            f"others may read {name} (mode {mode & 0o777:04o}), which may hold passwords. "
            f"Run `chmod 600 {name}`."
        )
        yield warning(_SUBJECT, text)
