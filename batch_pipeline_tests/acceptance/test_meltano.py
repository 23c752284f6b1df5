"""The Meltano project of the documentation, run with Meltano from PyPI."""

import os
import re
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
from batch_pipeline_tests.acceptance.sandbox import Sandbox, json_records, program_output

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
    """The folder of the project; shop and warehouse are two schemas of one database."""

    folder: Path
    environment: Mapping[str, str]
    meltano: Path
    url: str

    def run(self, *names: str) -> None:
        """Run a Meltano job, or a tap and a target, and assert exit code 0."""
        program_output(self.meltano, "run", *names, cwd=self.folder, env=self.environment)

    def sell(self, first: int, last: int) -> None:
        """Add sales to the shop."""
        with psycopg.connect(self.url) as connection:
            connection.execute(SALES, (first, last))

    def fetch_row(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row of a query."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode()).fetchone()

    def published(self) -> Counter[int]:
        """Count the published records by sale id."""
        return Counter(
            record["id"] for record in json_records(self.folder / "streams/sale/batches")
        )


@pytest.fixture
def meltano_yml() -> str:
    """The project file of the page."""
    page = SINGER_PAGE.read_text(encoding="utf-8")
    (project,) = re.findall(
        r"^```yaml\n(default_environment:.+?)^```", page, re.MULTILINE | re.DOTALL
    )
    return str(project)


@pytest.fixture
def project(
    sandbox: Sandbox, empty_database_url: str, meltano_yml: str, request: pytest.FixtureRequest
) -> Project:
    """The installed project, a shop without sales, and no warehouse yet."""
    cache = request.config.cache.mkdir("meltano")
    meltano = installed(cache, MELTANO) / "meltano"
    # Below the home of a sandbox, which kills remaining processes at the end.
    folder = sandbox.home / "project"
    for name in ("streams", ".meltano"):
        (folder / name).mkdir(parents=True)
    (folder / "meltano.yml").write_text(meltano_yml, encoding="utf-8")
    plugins = _plugins(cache, meltano, meltano_yml)
    for kind in ("extractors", "loaders"):
        (folder / ".meltano" / kind).symlink_to(plugins / kind)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(
            "CREATE TABLE sale (id bigint PRIMARY KEY, price numeric(12, 2), customer text, "
            "sold_at timestamptz)"
        )
    # Both need a host and a password; the socket folder in the query overrides them.
    urls = {
        f"{name}_URL": empty_database_url.replace(
            "postgresql://postgres@", f"postgresql+{driver}://postgres:none@localhost"
        )
        for name, driver in {"SHOP": "psycopg2", "WAREHOUSE": "psycopg"}.items()
    }
    base = sandbox.with_variables(BATCH_PIPELINE_HOME=None, BATCH_PIPELINE_STREAMS=None).environment
    path = f"{Path(sys.executable).parent}{os.pathsep}{base['PATH']}"
    environment = {**base, **_QUIET, **urls, "PATH": path}
    return Project(folder=folder, environment=environment, meltano=meltano, url=empty_database_url)


def _plugins(cache: Path, meltano: Path, meltano_yml: str) -> Path:
    """Return the cached folder of the plugins that `meltano install` installs."""

    def install(folder: Path) -> None:
        folder.mkdir()
        (folder / "meltano.yml").write_text(meltano_yml, encoding="utf-8")
        program_output(meltano, "install", cwd=folder, env={**os.environ, **_QUIET})

    return made_once(cache, f"{MELTANO[0]}\n{meltano_yml}", install) / ".meltano"


TOTAL = "SELECT count(*), count(DISTINCT id), sum(price), min(id), max(id) FROM sales.sale"


def test_meltano_project_loads_only_new_sales(project: Project) -> None:
    project.sell(1, 250)
    project.run("sales")
    assert project.fetch_row(TOTAL) == (250, 250, Decimal("31437.50"), 1, 250)
    seventh = "SELECT price, customer, sold_at FROM sales.sale WHERE id = 7"
    sold_at = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
    # The target has times without a zone.
    assert project.fetch_row(seventh) == (Decimal("7.25"), "Zoë 7", sold_at.replace(tzinfo=None))

    with psycopg.connect(project.url) as connection:  # sending a row again would overwrite it
        connection.execute("UPDATE sales.sale SET customer = 'not sent again'")
    project.run("tap-batch-pipeline", "target-postgres")
    unchanged = "SELECT count(*) FROM sales.sale WHERE customer = 'not sent again'"
    assert project.fetch_row(unchanged) == (250,)

    project.sell(251, 300)
    project.run("sales")
    assert project.published() == Counter({**dict.fromkeys(range(1, 301), 1), 250: 2})
    assert project.fetch_row(TOTAL) == (300, 300, Decimal("45225.00"), 1, 300)
    assert project.fetch_row(unchanged) == (249,)  # the tap starts with the row at its bookmark
