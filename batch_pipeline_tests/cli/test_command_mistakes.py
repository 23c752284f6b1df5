"""Commands with wrong names, in a wrong folder or at a wrong time."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError
from batch_pipeline_tests.defs.checks_fixture import publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
FIRST, SECOND = "00000001-00000003", "00000004-00000006"


def test_unknown_command_suggests_the_nearest_one() -> None:
    result = CliRunner().invoke(cli, ["statsu"])
    assert result.exit_code == 2
    assert "No such command 'statsu'. Did you mean 'status'?" in result.output
    far = CliRunner().invoke(cli, ["xyzzy"])
    assert far.exit_code == 2
    assert "Did you mean" not in far.output


def test_migrate_in_a_folder_without_a_home_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH_PIPELINE_HOME", raising=False)
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN", raising=False)
    result = CliRunner().invoke(cli, ["migrate"])
    assert isinstance(result.exception, ConfigurationError)
    home = tmp_path / ".batch_pipeline"
    assert f"There is no inventory in {home}." in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["pause", "resume", "cancel", "retry", "list"])
def test_unknown_job_error_lists_jobs_and_streams(project: DefsHarness, command: str) -> None:
    result = CliRunner().invoke(cli, ["jobs", command, "ordres"])
    assert isinstance(result.exception, UnknownJobError)
    assert str(result.exception) == (
        "There is no job 'ordres' (jobs: orders; streams: orders). Did you mean 'orders'? "
        "Nothing was done. Correct the name."
    )


def test_pause_distinguishes_unknown_streams_from_new_ones(project: DefsHarness) -> None:
    project.database.delete_stream("orders")
    unknown = CliRunner().invoke(cli, ["jobs", "pause", "ordres"])
    assert "no job 'ordres' (jobs: none; streams: orders). Did you mean 'orders'? " in str(
        unknown.exception
    )
    new = CliRunner().invoke(cli, ["jobs", "pause", "orders"])
    assert str(new.exception) == (
        "The stream 'orders' has no job yet. Nothing was done. `batch-pipeline plan orders` "
        "creates it."
    )


@pytest.mark.parametrize("label", ["4..6", "2", SECOND])
def test_reprocess_accepts_range_number_and_key(project: DefsHarness, label: str) -> None:
    publish_all(project)
    chosen = _dry_run("--batch", label)
    assert [batch["batch_id"] for batch in chosen] == [SECOND]


def test_reprocess_of_an_unknown_range_quotes_it(project: DefsHarness) -> None:
    publish_all(project)
    result = CliRunner().invoke(cli, ["reprocess", "orders", "--batch", "4..7", "--dry-run"])
    assert "'4..7'" in str(result.exception)


def test_reprocess_dry_run_ignores_the_lock_of_the_home(
    project: DefsHarness,
) -> None:
    publish_all(project)
    with project.pipeline.home.lock("batch-pipeline dev"):
        assert len(_dry_run("--all")) == 4


def _dry_run(*words: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(cli, ["reprocess", "orders", *words, "--dry-run", "--json"])
    assert result.exit_code == 0, result.exception
    batches: list[dict[str, object]] = json.loads(result.stdout)["batches"]
    return batches


def test_reprocess_since_and_until_select_by_publication_time(project: DefsHarness) -> None:
    publish_all(project)
    assert len(_dry_run("--since", "2020-01-01")) == 4
    assert _dry_run("--since", "2020-01-01", "--until", "2020-01-02") == []
    assert _dry_run("--since", "2999-01-01T00:00:00+01:00") == []


def test_batch_option_accepts_lists_and_names_unknown_batches(project: DefsHarness) -> None:
    labels = [status.batch.label for status in project.database.batches.statuses("orders")]
    listed = f"{labels[0]}, {labels[1]}"
    unknown = CliRunner().invoke(cli, ["jobs", "cancel", "orders", "--batch", f"{listed},x"])
    assert "no batch 'x'" in str(unknown.exception)
    words = ["jobs", "cancel", "orders", "--batch", listed, "--batch", labels[2], "--json"]
    assert '"batches":3' in CliRunner().invoke(cli, words).stdout.replace(" ", "")
    words = ["jobs", "retry", "orders", "--batch", listed, "--json"]
    assert '"batches":2' in CliRunner().invoke(cli, words).stdout.replace(" ", "")
    empty = CliRunner().invoke(cli, ["jobs", "retry", "orders", "--batch", "1,,2"])
    assert empty.exit_code == 2
