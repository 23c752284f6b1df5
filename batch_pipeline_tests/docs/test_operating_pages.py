"""Postgres and Dagster accept the statements and settings of the operations pages."""

import os
from importlib.resources import files
from pathlib import Path

import dagster as dg
import psycopg
import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.ref import InstanceRef

from batch_pipeline.defs.instance.served_runs import ServedRunLauncher
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.docs.pages import blocks

PACKAGE = files("batch_pipeline")
INSTANCE = (PACKAGE / "defs/instance/dagster.yaml").read_text(encoding="utf-8")


def _blocks(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(language) if block.page.stem == page]


def test_monitoring_statements_run(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(tmp_path))) as instance:
        assert instance.get_runs_count() == 0  # creates Dagster's tables
        statements = [
            text for block in _blocks("monitor", "sql") for text in block.split(";\n\n") if text
        ]
        assert len(statements) == 3
        with psycopg.connect(database_url, autocommit=True) as connection:
            for statement in statements:
                assert connection.execute(statement.encode()).description is not None


def test_dagster_accepts_the_deployment_settings(tmp_path: Path) -> None:
    [changes] = [
        yaml.safe_load(block) for block in _blocks("deploy", "yaml") if "# dagster.yaml" in block
    ]
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(yaml.safe_load(INSTANCE) | changes))
    instance = InstanceRef.from_dir(str(tmp_path))
    launcher, logs = instance.run_launcher_data, instance.compute_logs_data
    assert launcher is not None
    assert type(launcher.rehydrate(as_type=ServedRunLauncher)) is ServedRunLauncher
    logs_class = getattr(__import__(logs.module_name, fromlist=["_"]), logs.class_name)
    schema = resolve_to_config_type(logs_class.config_type())
    assert process_config(schema, logs.config_dict).success


def test_dump_and_restore_commands_keep_the_inventory(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [script] = _blocks("back_up_and_restore", "bash")
    url = "postgresql://postgres@127.0.0.1:5432/pipeline"
    assert script.count(url) == 2
    with psycopg.connect(database_url, autocommit=True) as connection:
        programs = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
        [folder] = programs.fetchone() or ()
        monkeypatch.setenv("PATH", os.pathsep.join([folder, os.environ["PATH"]]))
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'batch_pipeline'"
        before = connection.execute(tables).fetchone()
        assert before is not None
        assert before[0] > 10
        words = ("/bin/sh", "-e", "-c", script.replace(url, f"'{database_url}'"))
        program_output(*words, cwd=tmp_path)
        assert connection.execute(tables).fetchone() == before
