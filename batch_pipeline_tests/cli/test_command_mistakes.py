"""Commands with a name, a place or a moment that does not fit: what they say and leave."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError
from batch_pipeline_tests.defs.checks_fixture import publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsScene

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
FIRST, SECOND = "00000001-00000003", "00000004-00000006"


def test_unknown_command_suggests_the_nearest_one() -> None:
    ended = CliRunner().invoke(cli, ["statsu"])
    assert ended.exit_code == 2
    assert "No such command 'statsu'. Did you mean 'status'?" in ended.output
    far = CliRunner().invoke(cli, ["xyzzy"])
    assert far.exit_code == 2
    assert "Did you mean" not in far.output


def test_migrate_in_a_folder_without_a_home_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH_PIPELINE_HOME", raising=False)
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN", raising=False)
    ended = CliRunner().invoke(cli, ["migrate"])
    assert isinstance(ended.exception, ConfigurationError)
    where = tmp_path / ".batch_pipeline"
    assert f"There is no inventory in {where}." in str(ended.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["pause", "resume", "cancel", "retry", "list"])
def test_command_on_an_unknown_job_lists_jobs_and_streams(scene: DefsScene, command: str) -> None:
    ended = CliRunner().invoke(cli, ["jobs", command, "ordres"])
    assert isinstance(ended.exception, UnknownJobError)
    assert str(ended.exception) == (
        "There is no job 'ordres' (jobs: orders; streams: orders). Nothing was done. "
        "Check the name."
    )


def test_pause_before_the_first_run_tells_unknown_streams_from_new_ones(scene: DefsScene) -> None:
    scene.database.delete_stream("orders")
    unknown = CliRunner().invoke(cli, ["jobs", "pause", "ordres"])
    assert "no job 'ordres' (jobs: none; streams: orders)" in str(unknown.exception)
    new = CliRunner().invoke(cli, ["jobs", "pause", "orders"])
    assert str(new.exception) == (
        "The stream 'orders' has no job yet. Nothing was done. `batch-pipeline plan orders` "
        "creates it."
    )


@pytest.mark.parametrize("label", ["4..6", "2", SECOND])
def test_reprocess_takes_batches_by_all_their_names(scene: DefsScene, label: str) -> None:
    publish_all(scene)
    chosen = _dry_run("--batch", label)
    assert [one["batch_id"] for one in chosen] == [SECOND]


def test_reprocess_of_an_unknown_range_names_it_as_given(scene: DefsScene) -> None:
    publish_all(scene)
    ended = CliRunner().invoke(cli, ["reprocess", "orders", "--batch", "4..7", "--dry-run"])
    assert "'4..7'" in str(ended.exception)


def test_reprocess_dry_run_while_another_command_holds_the_home_shows_the_batches(
    scene: DefsScene,
) -> None:
    publish_all(scene)
    with scene.pipeline.home.lock("batch-pipeline dev"):
        assert len(_dry_run("--all")) == 4


def _dry_run(*words: str) -> list[dict[str, object]]:
    ended = CliRunner().invoke(cli, ["reprocess", "orders", *words, "--dry-run", "--json"])
    assert ended.exit_code == 0, ended.exception
    batches: list[dict[str, object]] = json.loads(ended.stdout)["batches"]
    return batches


def test_reprocess_since_takes_what_was_published_from_then_on(scene: DefsScene) -> None:
    publish_all(scene)
    assert len(_dry_run("--since", "2020-01-01")) == 4
    assert _dry_run("--since", "2020-01-01", "--until", "2020-01-02") == []
    assert _dry_run("--since", "2999-01-01T00:00:00+01:00") == []


def test_batch_option_takes_a_list_and_names_what_is_unknown(scene: DefsScene) -> None:
    labels = [status.batch.label for status in scene.database.batches.statuses("orders")]
    listed = f"{labels[0]}, {labels[1]}"
    unknown = CliRunner().invoke(cli, ["jobs", "cancel", "orders", "--batch", f"{listed},x"])
    assert "no batch 'x'" in str(unknown.exception)
    words = ["jobs", "cancel", "orders", "--batch", listed, "--batch", labels[2], "--json"]
    assert '"batches":3' in CliRunner().invoke(cli, words).stdout.replace(" ", "")
    words = ["jobs", "retry", "orders", "--batch", listed, "--json"]
    assert '"batches":2' in CliRunner().invoke(cli, words).stdout.replace(" ", "")
    empty = CliRunner().invoke(cli, ["jobs", "retry", "orders", "--batch", "1,,2"])
    assert empty.exit_code == 2
