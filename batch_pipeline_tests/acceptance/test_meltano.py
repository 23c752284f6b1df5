"""The Meltano project of the documentation, as it is written there, with Meltano from PyPI."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batch_pipeline_tests.acceptance.real_targets import installed, made_once
from batch_pipeline_tests.acceptance.sandbox import LONGEST_SECONDS, Sandbox, json_records

pytestmark = pytest.mark.long

MELTANO = ("meltano==4.4.1",)
SINGER_PAGE = Path(__file__).parents[2] / "batch_pipeline/docs/reference/singer.md"
SALES = """
    INSERT INTO sale
    SELECT n, n + 0.25, 'Zoë ' || n, '2026-01-01Z'::timestamptz + n * interval '1 second'
    FROM generate_series(%s::int, %s::int) n
"""
_QUIET = {
    "MELTANO_SEND_ANONYMOUS_USAGE_STATS": "false",
    "MELTANO_CLI_DISABLE_VERSION_CHECK": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with the project; shop and warehouse are two schemas of one database."""

    folder: Path
    environment: Mapping[str, str]
    meltano: Path
    url: str

    def run(self, *names: str) -> None:
        """Let Meltano run a job, or a tap into a target, and expect exit code 0."""
        _run(self.meltano, "run", *names, folder=self.folder, environment=self.environment)

    def sell(self, first: int, last: int) -> None:
        """Add sales to the shop."""
        with psycopg.connect(self.url) as connection:
            connection.execute(SALES, (first, last))

    def ask(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row of an answer."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode()).fetchone()

    def published(self) -> Counter[int]:
        """Count how often the published files have each sale."""
        return Counter(one["id"] for one in json_records(self.folder / "streams/sale/batches"))


@pytest.fixture
def described() -> str:
    """The only project on the page."""
    page = SINGER_PAGE.read_text(encoding="utf-8")
    (project,) = re.findall(
        r"^```yaml\n(default_environment:.+?)^```", page, re.MULTILINE | re.DOTALL
    )
    return str(project)


@pytest.fixture
def project(
    sandbox: Sandbox, empty_database_url: str, described: str, request: pytest.FixtureRequest
) -> Project:
    """The project with everything installed, a shop without sales, and no warehouse yet."""
    cache = request.config.cache.mkdir("meltano")
    meltano = installed(cache, MELTANO) / "meltano"
    # Below the home of a sandbox: whatever still runs there is ended with it.
    folder = sandbox.home / "project"
    for name in ("streams", ".meltano"):
        (folder / name).mkdir(parents=True)
    (folder / "meltano.yml").write_text(described, encoding="utf-8")
    plugins = _plugins(cache, meltano, described)
    for kind in ("extractors", "loaders"):
        (folder / ".meltano" / kind).symlink_to(plugins / kind)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(
            "CREATE TABLE sale (id bigint PRIMARY KEY, price numeric(12, 2), customer text, "
            "sold_at timestamptz)"
        )
    # Both want a host and a password; the folder of the socket comes behind them, and wins.
    given = {
        f"{name}_URL": empty_database_url.replace(
            "postgresql://postgres@", f"postgresql+{driver}://postgres:none@localhost"
        )
        for name, driver in {"SHOP": "psycopg2", "WAREHOUSE": "psycopg"}.items()
    }
    clean = sandbox.with_variables(
        BATCH_PIPELINE_HOME=None, BATCH_PIPELINE_STREAMS=None
    ).environment
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    environment = {**clean, **_QUIET, **given, "PATH": path}
    return Project(folder=folder, environment=environment, meltano=meltano, url=empty_database_url)


def _plugins(cache: Path, meltano: Path, described: str) -> Path:
    """Return the folder of what `meltano install` installs."""

    def install(folder: Path) -> None:
        folder.mkdir()
        (folder / "meltano.yml").write_text(described, encoding="utf-8")
        _run(meltano, "install", folder=folder, environment={**os.environ, **_QUIET})

    return made_once(cache, f"{MELTANO[0]}\n{described}", install) / ".meltano"


def _run(*words: str | Path, folder: Path, environment: Mapping[str, str]) -> None:
    ended = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


TOTAL = "SELECT count(*), count(DISTINCT id), sum(price), min(id), max(id) FROM sales.sale"


def test_project_of_the_page_brings_each_sale_once_and_only_what_is_new(project: Project) -> None:
    project.sell(1, 250)
    project.run("sales")
    assert project.ask(TOTAL) == (250, 250, Decimal("31437.50"), 1, 250)
    seventh = "SELECT price, customer, sold_at FROM sales.sale WHERE id = 7"
    sold_at = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
    # The target has times without a zone.
    assert project.ask(seventh) == (Decimal("7.25"), "Zoë 7", sold_at.replace(tzinfo=None))

    with psycopg.connect(project.url) as connection:  # a row that is sent again would replace it
        connection.execute("UPDATE sales.sale SET customer = 'not sent again'")
    project.run("tap-batch-pipeline", "target-postgres")
    kept = "SELECT count(*) FROM sales.sale WHERE customer = 'not sent again'"
    assert project.ask(kept) == (250,)

    project.sell(251, 300)
    project.run("sales")
    assert project.published() == Counter({**dict.fromkeys(range(1, 301), 1), 250: 2})
    assert project.ask(TOTAL) == (300, 300, Decimal("45225.00"), 1, 300)
    assert project.ask(kept) == (249,)  # the tap begins with the row at its bookmark
