"""The SDK tap into `target-postgres` of MeltanoLabs, by RECORD and by BATCH messages."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.benchmarks.singer_runs import Command, Run, bookmark, piped
from batch_pipeline_tests.benchmarks.singer_stage import Stage, expected_of_tap

TAP_REQUIREMENTS = ("singer-sdk[parquet]==0.54.9",)
TARGET_REQUIREMENTS = ("meltanolabs-target-postgres==0.8.1", "singer-sdk[parquet]==0.54.9")
TABLE = "peers.infinity"
_HERE = Path(__file__).parent
_SHARE_OF_MEMORY = 0.45  # for the tap and for the target each: the machine has to survive them


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """How records are sent; `files` is how many BATCH files they make, 0 for RECORD messages."""

    files: int = 0
    format: str = "jsonl"
    validated: bool = True

    def run(self, stage: Stage) -> Run:
        """Let the tap's records go through the target, and check the table."""
        expected = expected_of_tap(stage.records, stage.cache)
        target = installed(stage.cache, TARGET_REQUIREMENTS) / "target-postgres"
        config = {
            "sqlalchemy_url": stage.url.replace("postgresql://", "postgresql+psycopg://"),
            "default_target_schema": TABLE.partition(".")[0],
            "use_copy": True,
            "validate_records": self.validated,
        }
        words = (str(target), "--config", written(stage.folder / "target.config.json", config))
        run = piped(
            stage.folder,
            tap(stage, **self._batch_config(stage)),
            Command(name="target", words=words, most_bytes=_most_bytes()),
            environment=stage.environment,
        )
        stage.check(TABLE, expected)
        return replace(run, state=bookmark(stage.folder / "said"))

    def _batch_config(self, stage: Stage) -> dict[str, Any]:
        if not self.files:
            return {}
        compression = {"jsonl": {"compression": "gzip"}}.get(self.format, {})
        batch = {
            "encoding": {"format": self.format, **compression},
            "storage": {"root": f"file://{stage.folder / 'batches'}"},
            "batch_size": -(-stage.records // self.files),
        }
        return {"batch_config": batch}


def tap(stage: Stage, **config: Any) -> Command:
    """Give the tap."""
    python = installed(stage.cache, TAP_REQUIREMENTS) / "python"
    config = {"records": stage.records, **config}
    path = written(stage.folder / "tap.config.json", config)
    words = (str(python), str(_HERE / "infinity_tap.py"), "--config", path)
    return Command(name="tap", words=words, most_bytes=_most_bytes())


def generation(stage: Stage) -> Run:
    """Generate the tap's records and throw them away: what the peers' taps do anyhow."""
    python = installed(stage.cache, TAP_REQUIREMENTS) / "python"
    text = f"import infinity_records as i\nfor _ in i.records({stage.records}): pass"
    return piped(
        stage.folder,
        Command(name="tap", words=(str(python), "-c", text)),
        environment={**stage.environment, "PYTHONPATH": str(_HERE)},
    )


def written(path: Path, config: dict[str, Any]) -> str:
    """Write a config file and give its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def _most_bytes() -> int:
    return int(psutil.virtual_memory().total * _SHARE_OF_MEMORY)
