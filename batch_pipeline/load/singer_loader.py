"""Loads of published generations through the process of a Singer target.

`SingerLoader.load_together` runs the target once for several generations. A generation is loaded
when the target has printed the STATE that was sent after it. The last generation of a run also
needs exit code 0. The caller records the loads.
"""

import logging
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from batch_pipeline.load.singer_capabilities import Capabilities, probe
from batch_pipeline.load.singer_process import (
    MisbehavedError,
    TargetConfig,
    TargetRun,
    read_state,
)
from batch_pipeline.model.errors import (
    LEFT_IN_PART,
    NOTHING_SENT,
    ConfigurationError,
    TargetFailedError,
    Unloaded,
)
from batch_pipeline.model.load import Loaded, Loading, MessageMode, SingerTarget
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.singer.messages import (
    Bookmark,
    batch_message,
    line,
    schema_message,
    state_message,
)
from batch_pipeline.singer.part_records import record_blocks

log = logging.getLogger("batch_pipeline")
_LOAD_AGAIN = ", then run `batch-pipeline load` again."
_NO_STATE = "the target ended with exit code 0 but did not print the STATE of this batch"
_COMPARE_ROWS = (
    "Compare its rows with the batch. If the target cannot read BATCH messages, set "
    "`messages: record` in the stream file"
)


@dataclass(slots=True, kw_only=True)
class SingerLoader:
    """A loader that runs a Singer target for a stream.

    `environment` has the values of the variables in the configuration. `grace` is the time between
    SIGTERM and SIGKILL. `capabilities` are probed before the first load that needs them.
    """

    stream: str
    target: SingerTarget
    environment: Mapping[str, str] = field(repr=False)
    on_nonfinite: OnNonfinite = OnNonfinite.QUARANTINE
    grace: timedelta = timedelta(seconds=10)
    capabilities: Capabilities | None = None

    def load(self, loading: Loading) -> Loaded:
        """Run the target for one generation."""
        (loaded,) = self.load_together([loading])
        return loaded

    def load_together(self, loadings: Sequence[Loading]) -> Generator[Loaded, None, None]:
        """Run the target once for several generations; yield each when it is acknowledged.

        Raises:
            ConfigurationError: the target cannot be started.
            TargetFailedError: the target did not acknowledge the first generation that was not
                yielded. It is stopped.
            BatchDataError: a part file cannot be read.
            RetryableError: the store of a part file cannot be reached.
            SettingError: a variable of the configuration is not set.
        """
        config = TargetConfig.resolve(
            self.target.config, self.environment, f"targets.{self.target.name}.config"
        )
        mode = self._mode(loadings)
        states = [_state(self.stream, loading) for loading in loadings]
        sent = [state["value"] for state in states]
        yielded = 0
        state: Mapping[str, Any] = {}
        acknowledged = -1
        with config.write_file() as path, self._run_target(str(path), config, loadings[0]) as run:
            try:
                for printed in run.exchange(_lines(mode, loadings, states, self.on_nonfinite)):
                    if not printed.strip():
                        continue
                    number, value = read_state(printed, sent)
                    if number >= acknowledged:  # some targets repeat an older STATE at the end
                        acknowledged, state = number, config.redact_json(value)
                    while yielded <= min(acknowledged, len(loadings) - 2):
                        records = loadings[yielded].manifest.records
                        yield Loaded(records=records, state=state, mode=mode.value)
                        yielded += 1
            except MisbehavedError as error:
                run.stop()
                problem, step = self._misbehavior(error, config)
                raise self._failed(loadings[yielded], problem, step, run) from error
            code = run.exit_code or 0
            if code != 0:
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                problem, step = f"the target ended with {how}", "Correct the cause"
                raise self._failed(loadings[yielded], problem, step, run, code)
            if acknowledged < len(loadings) - 1:
                raise self._failed(loadings[yielded], _NO_STATE, _COMPARE_ROWS, run)
            yield Loaded(
                records=loadings[yielded].manifest.records,
                state=state,
                exit_code=code,
                log=run.stderr_tail,
                mode=mode.value,
            )

    def close(self) -> None:
        """Do nothing; no resource is open between loads."""

    def _mode(self, loadings: Sequence[Loading]) -> MessageMode:
        if self.target.messages is not MessageMode.AUTO:
            return self.target.messages
        if self.capabilities is None:
            self.capabilities = probe(self.target.command)
            log.info("capabilities of %s: %s", self.target.name, self.capabilities.reason)
        is_readable = all(self.capabilities.can_read(loading.manifest) for loading in loadings)
        return MessageMode.BATCH if is_readable else MessageMode.RECORD

    @contextmanager
    def _run_target(self, path: str, config: TargetConfig, first: Loading) -> Iterator[TargetRun]:
        command = [*self.target.command, "--config", path]
        try:
            if shutil.which(command[0]) is None:
                raise FileNotFoundError(2, "no such program on the PATH")
            run = TargetRun(
                command, timeout=self.target.timeout, redact=config.redact, grace=self.grace
            )
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            problem = f"{' '.join(self.target.command)!r} cannot be started ({reason})"
            step = "Install the target, or correct its `command` in the stream file"
            text = self._unloaded(first).text(problem, NOTHING_SENT, step + _LOAD_AGAIN)
            raise ConfigurationError(text) from error
        with run:
            yield run

    def _misbehavior(self, error: MisbehavedError, config: TargetConfig) -> tuple[str, str]:
        """Return the reason why a target was stopped, and the next step."""
        if error.line is None:
            seconds = self.target.timeout.total_seconds()
            problem = f"the target was idle for {seconds:g} s and was stopped"
            return problem, "Find what it waits for (a lock, a network), or raise its `timeout`"
        printed = config.redact(error.line.decode("utf-8", "replace").strip())
        problem = f"the target printed {printed!r:.200}, which {error.problem}; it was stopped"
        return problem, "Correct the target: only STATE values belong on its standard output"

    def _failed(
        self,
        loading: Loading,
        problem: str,
        step: str,
        run: TargetRun,
        exit_code: int | None = None,
    ) -> TargetFailedError:
        stderr = run.stderr_tail
        text = self._unloaded(loading).text(
            problem, LEFT_IN_PART, step + _LOAD_AGAIN, stderr=stderr
        )
        return TargetFailedError(text, exit_code, stderr)

    def _unloaded(self, loading: Loading) -> Unloaded:
        return Unloaded(target=self.target.name, stream=self.stream, batch=loading.label)


def _state(stream: str, loading: Loading) -> dict[str, Any]:
    bookmark = Bookmark().after(loading.manifest, loading.publish_number)
    return state_message(loading.manifest, bookmark, stream=stream)


def _lines(
    mode: MessageMode,
    loadings: Sequence[Loading],
    states: Sequence[dict[str, Any]],
    on_nonfinite: OnNonfinite,
) -> Iterator[bytes]:
    """Yield messages: for records SCHEMA when it changes, and RECORD or BATCH; then STATE."""
    announced: object = None
    for loading, state in zip(loadings, states, strict=True):
        manifest, name = loading.manifest, loading.message_name
        shape = (manifest.schema_version, manifest.key_properties)
        if manifest.part_files and shape != announced:
            schema = schema_message(name, manifest.schema, manifest.key_properties)
            yield line(schema).encode()
            announced = shape
        if manifest.part_files and mode is MessageMode.BATCH:
            yield line(batch_message(manifest, name=name)).encode()
        elif manifest.part_files:
            yield from record_blocks(manifest, name, on_nonfinite=on_nonfinite)
        yield line(state).encode()
