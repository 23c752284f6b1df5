"""The how-tos: what pages have their readers type is run as written, and prints what they show."""

import gzip
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline.spark.spark_connect import SparkConnectServer
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.acceptance.console_page import PROJECT, Changed, Typed, steps
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.acceptance.shop import Shop, Situation
from batch_pipeline_tests.inventory.logins import copied_database
from batch_pipeline_tests.object_store import ObjectStore

pytestmark = pytest.mark.long

FOLDER = Path(batch_pipeline.__file__).parent / "docs" / "how_to"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
MOST_LINES = 70
# By test_doctor.py, test_pack_command.py, test_local_cluster.py and test_spark_cluster.py.
RUN_ELSEWHERE = re.compile(r"batch-pipeline (doctor|pack .*|run)$|export ")
HOME = "$PWD/.batch_pipeline"
BUCKETS = ("s3://lake", "s3://inbox")


def landed(stream: str, *contents: str) -> dict[str, bytes]:
    """Name files of a stream in the order in which they land."""
    names = (f"landing/{stream}/{stream}-{number}.csv" for number in range(1, len(contents) + 1))
    return {name: text.encode() for name, text in zip(names, contents, strict=True)}


def some(count: int) -> list[str]:
    """Return the contents of files of two records each."""
    return [f"id,amount\n{n},{n}.50\n{n + 1},1.25\n" for n in range(1, 2 * count, 2)]


VISITS = "id,seconds\n1,30\n2,45\n"
SITUATIONS = {
    "change_the_schema": Situation(
        stream="visits",
        files=landed("visits", VISITS)
        | {
            "arrived/visits-2.csv": b"id,seconds,page\n3,20,/\n4,unknown,/help\n",
            "arrived/visits-3.csv": b"id,seconds,page,country\n5,12,/,FR\n",
        },
        published=True,
    ),
    "cut_again": Situation(
        stream="sales",
        files=landed("sales", *some(8)),
        attributes={"batch": {"max_count": 1}},
        published=True,
    ),
    "fix_a_bad_file": Situation(
        stream="returns",
        files=landed("returns", *some(2), 'id,amount\n5,"7.50\n6,1.25\n', *some(1))
        | {
            "repaired/returns-3.csv": b"id,amount\n5,7.50\n6,1.25\n",
            "broken/returns-5.csv.gz": gzip.compress(b"id,amount\n9,7.50\n", mtime=0)[:-9],
        },
    ),
    "load_by_a_singer_target": Situation(
        stream="payments",
        files=landed("payments", *some(4)),
        attributes={"batch": {"max_count": 2}},
        published=True,
    ),
    "move_to_a_cluster": Situation(stream="hits"),
    "move_to_s3": Situation(
        stream="events",
        files=landed("events", *some(2))
        | {
            "arrived/events-3.csv": some(3)[-1].encode(),
            "s3://inbox/events/events-4.csv": some(4)[-1].encode(),
        },
        attributes={"batch": {"max_count": 1}},
        published=True,
    ),
    "reprocess_history": Situation(
        stream="orders",
        files=landed("orders", *some(6)),
        attributes={"batch": {"max_count": 2}},
        published=True,
    ),
    "upgrade": Situation(stream="stock", revision="0005"),
}


@pytest.fixture(scope="module")
def shop(
    shared_sandbox: Sandbox,
    server_url: str,
    template: str,
    object_store: ObjectStore,
    request: pytest.FixtureRequest,
) -> Iterator[Shop]:
    """The project of all pages: one inventory, one Spark that knows the buckets, a real target."""
    targets = installed(request.config.cache.mkdir("singer-targets"))
    buckets = {name: f"s3://{object_store.new_bucket()}" for name in BUCKETS}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in object_store.environment.items():
            patch.setenv(name, value)
        s3_client.forget()
        stack.callback(s3_client.forget)
        url = stack.enter_context(copied_database(server_url, template))
        spark = stack.enter_context(SparkConnectServer(shared_sandbox.home))
        sandbox = shared_sandbox.with_variables(
            BATCH_PIPELINE_INVENTORY_CONN=url,
            BATCH_PIPELINE_SPARK_REMOTE=spark.remote,
            PATH=os.pathsep.join([os.environ["PATH"], str(targets)]),
        )
        sandbox.streams.mkdir()
        patch.chdir(sandbox.folder)
        there = {**buckets, PROJECT: str(sandbox.folder), HOME: f"$PWD/{sandbox.home.name}"}
        yield Shop(sandbox, there, object_store.client())


# Pages whose code is run by the tests of its package.
RUN_BY_OTHERS = {
    "back_up_and_restore": "guarantees/test_restored_inventory.py; shell commands are PostgreSQL's",
    "deploy": "docs/test_operating_pages.py and storage/test_recorded_requests.py",
    "handle_failures": "docs/test_code_blocks.py",
    "monitor": "docs/test_operating_pages.py",
    "move_from_pybatchintory": "test_from_pybatchintory.py",
    "read_batches": "pipeline/test_published_batches.py and defs/test_batch_reader.py",
    "transform_with_pyspark": "spark/test_transform.py",
}


def test_every_page_has_a_situation_and_is_short() -> None:
    assert [*PAGES] == sorted({*SITUATIONS, *RUN_BY_OTHERS})
    assert {name: n for name, text in PAGES.items() if (n := text.count("\n")) > MOST_LINES} == {}


# Dagster looks at its resources with names that pydantic wants to give up.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
@pytest.mark.parametrize("page", SITUATIONS)
def test_how_to_commands_print_what_the_page_shows(
    shop: Shop, page: str, request: pytest.FixtureRequest
) -> None:
    situation = SITUATIONS[page]
    if situation.revision is not None:
        url = request.getfixturevalue("empty_database_url")
        shop = shop.at_revision(situation.revision, url)
    shop.open(situation)
    for step in steps(PAGES[page]):
        if isinstance(step, Changed):
            shop.change(situation.stream, step.attributes)
        elif not RUN_ELSEWHERE.match(step.command):
            code, said = shop.enter(step.command)
            assert (code != 0) == step.fails, f"{step.command}: exit code {code}\n{said}"
            assert step.fits(said), f"{step.command}: the page shows other lines than\n{said}"


def test_line_that_a_command_does_not_print_is_noticed() -> None:
    """The comparison of pages with output must be able to fail."""
    [step] = steps("```console\n$ ls\none … three\n…\nlast\n```\n")
    assert isinstance(step, Typed)
    assert step.fits("one two three\nlast\n")
    assert step.fits("one 2 three\nmore\nand more\nlast\n")
    assert not step.fits("one two three\nlast\nmore\n")
    assert not step.fits("one two four\nlast\n")
