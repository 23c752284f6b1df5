"""The how-to pages: their commands are run as written and print the output of the page."""

import gzip
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import psycopg
import pytest

import batch_pipeline
from batch_pipeline.spark.spark_connect import SparkConnectServer
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.acceptance.console_page import PROJECT, Command, StreamFileEdit, steps
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests, program_output
from batch_pipeline_tests.acceptance.shop import ExampleProject, PageSetup
from batch_pipeline_tests.inventory.logins import copied_database
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.spark.spark_cluster import standalone_cluster

pytestmark = pytest.mark.long

FOLDER = Path(batch_pipeline.__file__).parent / "docs" / "how_to"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
MAX_LINES = 70
RUN_BY_OTHER_TESTS = {"batch-pipeline doctor"}  # test_doctor.py
HOME = "$PWD/.batch_pipeline"
BUCKETS = ("s3://lake", "s3://inbox")


def landing_files(stream: str, *contents: str) -> dict[str, bytes]:
    """Return files of a stream by name, numbered in order."""
    names = (f"landing/{stream}/{stream}-{number}.csv" for number in range(1, len(contents) + 1))
    return {name: text.encode() for name, text in zip(names, contents, strict=True)}


def csv_files(count: int) -> list[str]:
    """Return csv files of two records each."""
    return [f"id,amount\n{n},{n}.50\n{n + 1},1.25\n" for n in range(1, 2 * count, 2)]


BAD_CSV = 'id,amount\n5,"7.50\n6,1.25\n'
VISITS = "id,seconds\n1,30\n2,45\n"
SETUPS = {
    "change_the_schema": PageSetup(
        stream="visits",
        files=landing_files("visits", VISITS)
        | {
            "arrived/visits-2.csv": b"id,seconds,page\n3,20,/\n4,unknown,/help\n",
            "arrived/visits-3.csv": b"id,seconds,page,country\n5,12,/,FR\n",
        },
        published=True,
    ),
    "cut_again": PageSetup(
        stream="sales",
        files=landing_files("sales", *csv_files(8)),
        attributes={"batch": {"max_count": 1}},
        published=True,
    ),
    "fix_a_bad_file": PageSetup(
        stream="returns",
        files=landing_files("returns", *csv_files(2), BAD_CSV, *csv_files(1))
        | {
            "repaired/returns-3.csv": b"id,amount\n5,7.50\n6,1.25\n",
            "broken/returns-5.csv.gz": gzip.compress(b"id,amount\n9,7.50\n", mtime=0)[:-9],
        },
    ),
    "handle_failures": PageSetup(
        stream="refunds",
        files=landing_files("refunds", *csv_files(2), BAD_CSV, *csv_files(1)),
    ),
    "load_by_a_singer_target": PageSetup(
        stream="payments",
        files=landing_files("payments", *csv_files(4)),
        attributes={"batch": {"max_count": 2}},
        published=True,
    ),
    "move_to_s3": PageSetup(
        stream="events",
        files=landing_files("events", *csv_files(2))
        | {
            "arrived/events-3.csv": csv_files(3)[-1].encode(),
            "s3://inbox/events/events-4.csv": csv_files(4)[-1].encode(),
        },
        attributes={"batch": {"max_count": 1}},
        published=True,
    ),
    "reprocess_history": PageSetup(
        stream="orders",
        files=landing_files("orders", *csv_files(6)),
        attributes={"batch": {"max_count": 2}},
        published=True,
    ),
    "upgrade": PageSetup(stream="stock", release_0_1_0=True),
}


@pytest.fixture(scope="module")
def project(
    shared_sandbox: Sandbox,
    server_url: str,
    template: str,
    object_store: ObjectStore,
    request: pytest.FixtureRequest,
) -> Iterator[ExampleProject]:
    """The project of all pages: one inventory, one Spark server and one target."""
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
        replacements = {**buckets, PROJECT: str(sandbox.folder), HOME: f"$PWD/{sandbox.home.name}"}
        yield ExampleProject(sandbox, replacements, object_store.client())


# Pages whose code is run by other tests.
PAGES_OF_OTHER_TESTS = {
    "back_up_and_restore": "guarantees/test_restored_inventory.py; shell commands are PostgreSQL's",
    "deploy": "docs/test_operating_pages.py and storage/test_recorded_requests.py",
    "monitor": "docs/test_operating_pages.py",
    "move_from_pybatchintory": "test_from_pybatchintory.py",
    "move_to_a_cluster": "test_cluster_page_commands_publish_on_a_cluster",
    "read_batches": "defs/test_batch_reader.py and test_other_programs_read_the_listed_files",
    "transform_with_pyspark": "spark/test_transform.py",
}


def test_every_page_is_tested_and_short() -> None:
    assert [*PAGES] == sorted({*SETUPS, *PAGES_OF_OTHER_TESTS})
    assert {name: n for name, text in PAGES.items() if (n := text.count("\n")) > MAX_LINES} == {}


@pytest.mark.parametrize("page", SETUPS)
def test_how_to_commands_print_what_the_page_shows(
    project: ExampleProject, page: str, request: pytest.FixtureRequest
) -> None:
    setup = SETUPS[page]
    if setup.release_0_1_0:
        project = project.at_release_0_1_0(request.getfixturevalue("empty_database_url"))
    project.set_up(setup)
    for step in steps(PAGES[page]):
        if isinstance(step, StreamFileEdit):
            project.change(setup.stream, step.attributes)
        elif step.command not in RUN_BY_OTHER_TESTS:
            code, output = project.run(step.command)
            assert (code != 0) == step.fails, f"{step.command}: exit code {code}\n{output}"
            assert step.matches(output), (
                f"{step.command}: the page shows other lines than\n{output}"
            )


def test_cluster_page_commands_publish_on_a_cluster(
    sandbox: Sandbox, database_url: str, tmp_path: Path
) -> None:
    sandbox.write_stream("hits")
    sandbox.land("hits", {"hits-1.csv": csv_files(1)[0].encode()})
    commands = [
        one.command for one in steps(PAGES["move_to_a_cluster"]) if isinstance(one, Command)
    ]
    assert len(commands) == 4
    with standalone_cluster(tmp_path / "spark", {}) as cluster:
        script = "\n".join(commands).replace("spark://host:7077", cluster.master)
        sandbox = sandbox.with_variables(
            BATCH_PIPELINE_INVENTORY_CONN=database_url,
            PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        )
        words = ("/bin/bash", "-e", "-c", script)
        program_output(*words, cwd=sandbox.folder, env=sandbox.environment)
        assert cluster.applications() == 1
    assert len(manifests(sandbox.storage("hits"))) == 1


def test_other_programs_read_the_listed_files(project: ExampleProject) -> None:
    attributes = {"encoding": {"format": "parquet", "compression": "snappy"}}
    files = landing_files("takings", *csv_files(2))
    project.set_up(PageSetup(stream="takings", files=files, attributes=attributes, published=True))
    listing, *_ = (one.command for one in steps(PAGES["read_batches"]) if isinstance(one, Command))
    code, output = project.run_in_shell(listing.replace("sales", "takings"))
    assert code == 0, output
    for statement in re.findall(r"^D (.+)$", PAGES["read_batches"], re.MULTILINE):
        result = duckdb.execute(statement)
    assert result.fetchall() == [(4,)]


REFERENCE = FOLDER.parent / "reference"
REFERENCE_SECTIONS = {
    "command_line": "# Commands",
    "meta_tables": "## Late files",
    "retention": "## Garbage",
}
FILES_TABLE = """
CREATE SCHEMA IF NOT EXISTS ops;
CREATE TABLE ops.files (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    file_location text, size_in_bytes bigint, kind text);
"""


@pytest.mark.parametrize("page", REFERENCE_SECTIONS)
def test_commands_of_reference_pages_succeed(project: ExampleProject, page: str) -> None:
    project.set_up(SETUPS["reprocess_history"])
    with psycopg.connect(str(project.sandbox.variables["BATCH_PIPELINE_INVENTORY_CONN"])) as own:
        if page == "command_line":
            own.execute(FILES_TABLE)
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(REFERENCE_SECTIONS[page] + "\n")
    section = rest.partition("\n## Files that are loaded\n")[0]
    commands = [step.command for step in steps(section) if isinstance(step, Command)]
    assert commands
    for command in commands:
        code, output = project.run(command)
        assert code == 0, f"{command}: {output}"


def test_comparison_of_output_with_the_page() -> None:
    [step] = steps("```console\n$ ls\none … three\n…\nlast\n```\n")
    assert isinstance(step, Command)
    assert step.matches("one two three\nlast\n")
    assert step.matches("one 2 three\nmore\nand more\nlast\n")
    assert not step.matches("one two three\nlast\nmore\n")
    assert not step.matches("one two four\nlast\n")
