"""Loads published generations by running a Singer target and believing only what it acknowledges.

A generation is loaded when the target has printed the STATE that was sent after it; the last one of
a run only when the target has ended well, too. What is recorded of it is not known here.
"""

import logging
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from batch_pipeline.domain.errors import (
    LoadError,
    TargetFailedError,
    TargetHangsError,
    TargetSilentError,
    TargetStartError,
    TargetStateError,
)
from batch_pipeline.domain.load import Loaded, Loading
from batch_pipeline.domain.target import MessageMode, SingerTarget
from batch_pipeline.singer.bookmarks import Bookmark
from batch_pipeline.singer.messages import batch_message, line, schema_message, state_message
from batch_pipeline.singer.part_records import record_blocks
from batch_pipeline.singer.running.acknowledgements import BrokenStateError, Sent
from batch_pipeline.singer.running.capabilities import Capabilities, probe
from batch_pipeline.singer.running.config_file import Config
from batch_pipeline.singer.running.target_run import HungError, TargetRun

log = logging.getLogger("batch_pipeline")


@dataclass(slots=True, kw_only=True)
class SingerLoader:
    """A Singer target of a stream.

    `environment` fills the variables of its configuration. `grace` is how long it may take to end
    when it is asked to. `capabilities` are probed before the first load that needs them.
    """

    stream: str
    target: SingerTarget
    environment: Mapping[str, str] = field(repr=False)
    grace: timedelta = timedelta(seconds=10)
    capabilities: Capabilities | None = None

    def load(self, loading: Loading, storage_root: str) -> Loaded:
        """Run the target for one generation."""
        (loaded,) = self.load_together([loading], storage_root)
        return loaded

    def load_together(
        self, loadings: Sequence[Loading], storage_root: str
    ) -> Generator[Loaded, None, None]:
        """Run the target once for several generations; gives each when it is acknowledged.

        Raises:
            TargetStartError: it cannot be started.
            TargetFailedError, TargetSilentError, TargetStateError, TargetHangsError: it did not
                acknowledge the first generation that was not given yet. It is stopped.
            PartFileError: a file cannot be read for it.
            PartFileUnreachableError: the store of a file does not give it now.
            SettingError: a variable of its configuration is not set.
        """
        config = Config.filled(
            self.target.config, self.environment, f"targets.{self.target.name}.config"
        )
        mode = self._mode(loadings)
        states = [_state(self.stream, one) for one in loadings]
        sent = Sent([state["value"] for state in states])
        given = 0
        state: Mapping[str, Any] = {}
        reached = -1
        with config.in_file() as path, self._started(str(path), config, loadings[0]) as run:
            try:
                for printed in run.talk(_lines(mode, loadings, states)):
                    if not printed.strip():
                        continue
                    number, value = sent.read(printed)
                    if number >= reached:  # some repeat an older STATE when they end
                        reached, state = number, config.hide_in(value)
                    while given <= min(reached, len(loadings) - 2):
                        yield _loaded(loadings[given], mode, state)
                        given += 1
            except (BrokenStateError, HungError) as error:
                run.stop()
                raise self._stopped(error, loadings[given], run.said, config) from error
            code = run.exit_code or 0
            if code != 0:
                raise TargetFailedError(*self._about(loadings[given]), code, run.said)
            if reached < len(loadings) - 1:
                raise TargetSilentError(*self._about(loadings[given]), run.said)
            yield _loaded(loadings[given], mode, state, exit_code=code, log=run.said)

    def close(self) -> None:
        """Nothing is open between loads."""

    def _mode(self, loadings: Sequence[Loading]) -> MessageMode:
        if self.target.messages is not MessageMode.AUTO:
            return self.target.messages
        if self.capabilities is None:
            self.capabilities = probe(self.target.command)
            log.info("capabilities of %s: %s", self.target.name, self.capabilities.reason)
        is_readable = all(self.capabilities.can_read(one.manifest) for one in loadings)
        return MessageMode.BATCH if is_readable else MessageMode.RECORD

    @contextmanager
    def _started(self, path: str, config: Config, first: Loading) -> Iterator[TargetRun]:
        command = [*self.target.command, "--config", path]
        try:
            if shutil.which(command[0]) is None:
                raise FileNotFoundError(2, "no such program on the PATH")
            run = TargetRun(
                command, timeout=self.target.timeout, hide=config.hide, grace=self.grace
            )
        except OSError as error:
            shown = " ".join(self.target.command)
            reason = (error.strerror or type(error).__name__).lower()
            raise TargetStartError(*self._about(first), shown, reason) from error
        with run:
            yield run

    def _stopped(
        self, error: BrokenStateError | HungError, loading: Loading, said: str, config: Config
    ) -> LoadError:
        """Say why the target was stopped."""
        if isinstance(error, HungError):
            waited = f"{self.target.timeout.total_seconds():g} s"
            return TargetHangsError(*self._about(loading), waited, said)
        printed = config.hide(error.line.decode("utf-8", "replace").strip())
        return TargetStateError(*self._about(loading), printed, error.problem, said)

    def _about(self, loading: Loading) -> tuple[str, str, str]:
        return self.target.name, self.stream, loading.label


def _state(stream: str, loading: Loading) -> dict[str, Any]:
    bookmark = Bookmark().after(loading.manifest, loading.publish_number)
    return state_message(loading.manifest, bookmark, stream=stream)


def _lines(
    mode: MessageMode, loadings: Sequence[Loading], states: Sequence[dict[str, Any]]
) -> Iterator[bytes]:
    """Give blocks of whole lines: SCHEMA when it changes, the records or their BATCH, STATE."""
    announced: object = None
    for loading, state in zip(loadings, states, strict=True):
        manifest, name = loading.manifest, loading.message_name
        shape = (manifest.schema_version, manifest.key_properties)
        if shape != announced:
            yield line(schema_message(manifest, name=name)).encode()
            announced = shape
        if manifest.part_files and mode is MessageMode.BATCH:
            yield line(batch_message(manifest, name=name)).encode()
        elif manifest.part_files:
            yield from record_blocks(manifest, name)
        yield line(state).encode()


def _loaded(
    loading: Loading,
    mode: MessageMode,
    state: Mapping[str, Any],
    *,
    exit_code: int | None = None,
    log: str = "",
) -> Loaded:
    return Loaded(
        records=loading.manifest.records,
        state=state,
        exit_code=exit_code,
        log=log,
        mode=mode.value,
    )
