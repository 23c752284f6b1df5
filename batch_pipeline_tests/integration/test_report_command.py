"""The command `report`, run in this process on a real inventory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.integration.checks_scene import publish
from batch_pipeline_tests.integration.defs_scene import DefsScene, open_defs_scene
from batch_pipeline_tests.integration.seeds import claimed, execute, register

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four planned batches of 30 bytes; the environment names it."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened


def run(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["report", *words])


def fail(scene: DefsScene, place: int, error: str) -> None:
    """Let an attempt on a batch fail."""
    batch = scene.database.batches.statuses("orders")[place].batch
    with claimed(scene.database, batch) as attempt:
        scene.database.attempts.fail(attempt, error, AttemptStatus.FAILED)


def worked(scene: DefsScene) -> None:
    """Publish the first two batches, the second by its second attempt, and fail on the third."""
    batches = [one.batch for one in scene.database.batches.statuses("orders")]
    publish(scene, batches[0], quarantined=5)
    fail(scene, 1, "the <first> try")
    publish(scene, batches[1])
    fail(scene, 2, "x" * 5_000)


def test_recent_work_is_what_the_inventory_holds(scene: DefsScene) -> None:
    """Expect counters, sizes and failures as they were published, and what waits by its weight."""
    worked(scene)
    work = scene.database.recent_works.of_stream("orders", newest=10)
    assert [one.label[:12] for one in work.published] == ["000000000001", "000000000004"]
    first = work.published[0]
    assert (first.weight, first.size_bytes, first.generation) == (30, 100, 1)
    assert (first.read, first.written, first.quarantined) == (20, 15, 5)
    assert first.planned_at < first.started_at < first.published_at < work.at
    assert sum(one.batches for one in work.waiting) == 2
    assert sum(one.weight for one in work.waiting) == 60
    assert work.is_whole
    assert [(one.number, one.state) for one in work.failures] == [
        (1, BatchState.FAILED),
        (1, BatchState.PUBLISHED),
    ]
    assert [len(one.error or "") for one in work.failures] == [2_000, 15]
    assert [point.batches for point in work.backlog()][-1] == 2


def test_recent_work_goes_back_no_further_than_asked(scene: DefsScene) -> None:
    """Expect the newest alone, and its past to be called cut; what it had published no failure."""
    worked(scene)
    work = scene.database.recent_works.of_stream("orders", newest=1)
    assert [one.label[:12] for one in work.published] == ["000000000004"]
    assert not work.is_whole
    assert work.backlog()[0].at == work.published[0].published_at
    assert [point.batches for point in work.backlog()] == [2, 2]


def test_recent_work_of_a_replaced_generation_stays(scene: DefsScene) -> None:
    """Expect both generations to have been work, and only the first to have been backlog."""
    batch = scene.database.batches.statuses("orders")[0].batch
    publish(scene, batch)
    publish(scene, batch)
    work = scene.database.recent_works.of_stream("orders", newest=10)
    assert [one.generation for one in work.published] == [1, 2]
    assert [point.batches for point in work.backlog()][-3:] == [4, 3, 3]


def test_recent_work_of_many_planned_batches_is_in_few_groups(scene: DefsScene) -> None:
    """Expect what was planned within a long time to be at most 102 steps."""
    register(scene.database, 600, first=13)
    scene.database.batches.plan(
        scene.pipeline.meta_table(scene.stream), scene.stream.limits, drain=True
    )
    publish(scene, scene.database.batches.statuses("orders")[0].batch)
    execute(
        scene.database,
        "UPDATE batch_pipeline.batch SET planned_at = now() + first_id * interval '1 second'"
        " - interval '1 hour'",
    )
    execute(
        scene.database,
        "UPDATE batch_pipeline.attempt SET finished_at = now() - interval '59 minutes'",
    )
    work = scene.database.recent_works.of_stream("orders", newest=10)
    assert sum(one.batches for one in work.waiting) == 203
    assert 10 < len(work.waiting) <= 102


def test_report_writes_one_page_of_the_stream(scene: DefsScene, tmp_path: Path) -> None:
    """Expect figures and reasons in it, escaped, and nothing of secrets or half-written files."""
    worked(scene)
    path = tmp_path / "report.html"
    path.write_text("before")
    ended = run("orders", "--output", str(path))
    assert ended.exit_code == 0, ended.output
    assert f"{path}: " in ended.output
    text = path.read_text()
    assert "the &lt;first&gt; try" in text
    assert "6 items, 60 B" in text
    assert "2 published" in text
    assert text.count("<svg") == 8
    assert [one.name for one in tmp_path.glob("*report*")] == ["report.html"]


def test_report_tells_programs_the_figures(scene: DefsScene, tmp_path: Path) -> None:
    """Expect `--json` beside the page."""
    worked(scene)
    ended = run("--output", str(tmp_path / "report.html"), "--json")
    [told] = json.loads(ended.stdout)["streams"]
    assert told["stream"] == "orders"
    assert (told["items_waiting"], told["bytes_waiting"]) == (6, 60)
    assert told["outlook"] == "shrinks"
    assert told["seconds_of_work_left"] > 0
    assert (told["batches"]["published"], told["failures"]) == (2, 2)


def test_report_of_a_stream_without_batches_is_written(scene: DefsScene) -> None:
    """Expect a page on standard output, and nothing else there."""
    scene.database.forget("orders")
    ended = run("--output", "-")
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.lstrip().startswith("<!doctype html>")
    assert ended.stdout.rstrip().endswith("</html>")
    assert "nothing waits" in ended.stdout


def test_report_that_cannot_be_written_says_so(scene: DefsScene, tmp_path: Path) -> None:
    """Expect exit code 1 and the place."""
    ended = run("--output", str(tmp_path / "missing" / "report.html"))
    assert ended.exit_code == 1
    assert "missing" in ended.output


def test_report_of_a_table_that_is_gone_tells_the_rest(
    scene: DefsScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the problem on the page and on the terminal, with what the inventory knows."""
    worked(scene)
    stream_file = tmp_path / "streams" / "orders" / "defs.yaml"
    text = stream_file.read_text()
    table: dict[str, Any] = {
        "table": "ops.gone",
        "uid": "id",
        "item": "file",
        "weight": "size",
        "roots": [str(tmp_path)],
    }
    landing = tmp_path / "landing" / "orders"
    source = f"source:\n    format: csv\n    uri: {landing}\n"
    assert source in text
    replaced = text.replace(
        source, f"source:\n    format: csv\n    meta_table: {json.dumps(table)}\n"
    )
    stream_file.write_text(replaced)
    ended = run("--output", str(tmp_path / "report.html"))
    assert ended.exit_code == 0, ended.output
    assert "ops.gone" in ended.output
    assert "cannot be read" in (tmp_path / "report.html").read_text()
