"""Servers and databases of tests, and logins of the group roles with their rights."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.database import Database, open_database

ROLES_FILE = Path(str(files("batch_pipeline.inventory") / "roles.sql"))
GROUPS = {
    "olga": ("bp_owner",),
    "paul": ("bp_planner",),
    "wanda": ("bp_worker",),
    "rita": ("bp_reader",),
    "lib": ("bp_planner", "bp_worker"),  # a program that acquires both plans and works
}


@dataclass(frozen=True, slots=True)
class Logins:
    """The logins of a database with an inventory; each is opened once."""

    url: str
    _opened: ExitStack
    _databases: dict[str, Database]

    def of(self, name: str) -> Database:
        """Return the inventory as opened by a login."""
        if name not in self._databases:
            opened = open_database(url_for_login(self.url, name), migrated=False)
            self._databases[name] = self._opened.enter_context(closing(opened))
        return self._databases[name]


@contextmanager
def logins_to(url: str) -> Iterator[Logins]:
    """Open the inventory at a superuser's URL for its logins."""
    with ExitStack() as opened:
        yield Logins(url, opened, {})


def make_logins(url: str) -> None:
    """Grant the groups their rights and create a login for each, with an empty search path."""
    with closing(open_database(url, migrated=None)) as database:
        database.migrate()
    run_roles_file(url)
    for name, groups in GROUPS.items():
        create_login(url, name, groups)
        no_path = sql.SQL("ALTER ROLE {} SET search_path = ''").format(sql.Identifier(name))
        run(url, no_path)


def run_roles_file(url: str, prefix: str = "bp_") -> None:
    """Run roles.sql, or a copy with another prefix, as the login of the URL."""
    run(url, ROLES_FILE.read_text().replace("bp_", prefix))


def create_login(url: str, name: str, groups: Sequence[str] = (), *, rights: str = "") -> None:
    """Create a login role that is a member of some groups, with rights of its own."""
    create = sql.SQL("CREATE ROLE {} LOGIN " + rights).format(sql.Identifier(name))
    run(url, create)
    for group in groups:
        grant = sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(name))
        run(url, grant)


@contextmanager
def new_data_folder() -> Iterator[Path]:
    """Yield the data folder of an embedded server that does not run yet; end it afterwards."""
    # Not below pytest's own folder: socket paths must be short, and pytest restricts modes there.
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    try:
        yield folder / "postgres"
    finally:
        embedded_server.release(folder / "postgres")
        shutil.rmtree(folder)


@contextmanager
def copied_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """Copy a database for the block, by default an empty one, and return the copy's URL."""
    name = f"copy_{uuid4().hex}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    run(server_url, create.format(sql.Identifier(name), sql.Identifier(template)))
    yield server_url.replace("/postgres?", f"/{name}?")
    run(server_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def url_for_login(url: str, login: str) -> str:
    """Return the URL of the same database for another login."""
    return url.replace("//postgres@", f"//{login}@")


def database_name(url: str) -> str:
    """Return the name of the database."""
    return url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]


def run(url: str, statement: sql.SQL | sql.Composed | str) -> None:
    """Run one statement as the login of the URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode() if isinstance(statement, str) else statement)
