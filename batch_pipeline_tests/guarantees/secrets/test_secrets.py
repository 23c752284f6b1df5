"""Real commands write no secrets and listen on loopback only (S2, S3).

The long form also runs every other command, writes to a bucket, and runs `dev`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.guarantees.secrets.installation import (
    REMOTE,
    Installation,
    open_installation,
    with_password,
)
from batch_pipeline_tests.guarantees.secrets.watcher import OWNER
from batch_pipeline_tests.inventory.logins import copied_database
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.proofs import Figures


@pytest.fixture(scope="module")
def installation(
    server_url: str, template: str, object_store: ObjectStore, long_form: bool
) -> Iterator[Installation]:
    """The installation after all commands have succeeded and failed."""
    with copied_database(server_url, template) as url, open_installation(url) as installation:
        installation.run("run", exits=3)  # one file is bad
        targets = ("table", "talking", "failing", "printing")
        installation.run("load", "orders", *(f"--target={name}" for name in targets), exits=3)
        installation.run("status", "--json")
        _run_with_wrong_settings(installation)
        if long_form:
            _run_the_rest(installation)
            _run_with_other_dagster_storage(installation)
            _use_a_bucket(installation, object_store)
            installation.kill_while_loading()
            installation.search_dev()
        installation.search_everything()
        yield installation


def _run_with_wrong_settings(installation: Installation) -> None:
    """Run commands with refused connections, and with an error in each setting with a secret."""
    words = installation.secrets
    token, password = words["token of Spark Connect"], words["inventory password"]
    installation.run("run", exits=3, **{REMOTE: f"sc://127.0.0.1:1/;token={token}"})
    refused = f"postgresql://ann:{password}@127.0.0.1:1/inventory"
    installation.run("status", exits=75, BATCH_PIPELINE_INVENTORY_CONN=refused)
    wrong = Sandbox(folder=installation.sandbox.folder / "wrong")
    queue = f"https://ann:{words['password in the URL of a queue']}@sqs.eu-west-1.amazonaws.com/1/q"
    wrong.write_stream("events", source={"uri": "s3://bucket/events", "events": {"queue": queue}})
    path = wrong.write_stream("orders")
    stream = (installation.sandbox.streams / "orders" / "defs.yaml").read_text()
    path.write_text(stream.replace("$TARGET_PASSWORD", words["password in a stream file"]))
    output = installation.run("status", exits=1, BATCH_PIPELINE_STREAMS=str(wrong.streams))
    assert "Invalid stream files: 2." in output
    shutil.rmtree(wrong.folder)


def _run_the_rest(installation: Installation) -> None:
    for words in (
        ("doctor",),
        ("verify", "--all", "--deep"),
        ("explain", "a.csv"),
        ("messages", "orders"),
        ("jobs", "list", "orders"),
        ("plan", "orders", "--dry-run"),
        ("reconcile", "--all"),
        ("gc", "--dry-run"),
        ("migrate",),
        ("pack", str(installation.sandbox.folder / "packed.tar.gz")),
    ):
        installation.run(*words, exits=None)
    password = installation.secrets["inventory password"]
    for form in ("postgresql://ann:x@{}@127.0.0.1:1/i", "mysql://ann:{}@127.0.0.1:1/i"):
        installation.run("status", exits=1, BATCH_PIPELINE_INVENTORY_CONN=form.format(password))
    other = f"postgresql://ann:se/{installation.secrets['password of a target']}@127.0.0.1:1/x"
    installation.run("load", "orders", "--target", "table", exits=None, WAREHOUSE=other)
    installation.run("run", exits=None, OPS_DB=f"{other}?connect_timeout=1")
    installation.sandbox.land("orders", {"f.csv": b"id\n8\n"})
    crash = "publish.before_commit=raise"  # with a traceback
    installation.run("run", "orders", exits=None, BATCH_PIPELINE_FAILPOINTS=crash)


def _run_with_other_dagster_storage(installation: Installation) -> None:
    """Run with Dagster's storage in a separate database: one that works, one unreachable."""
    name = "DAGSTER_STORAGE"
    postgres = {"module": "dagster_postgres.storage", "class": "DagsterPostgresStorage"}
    storage = {"custom": {**postgres, "config": {"postgres_url": {"env": name}}}}
    dagster_yaml = installation.sandbox.home / "dagster.yaml"
    dagster_yaml.write_text(yaml.safe_dump({"storage": storage}))
    password = installation.secrets["password of Dagster's storage"]
    installation.sandbox.land("orders", {"g.csv": b"id\n9\n"})
    working = with_password(installation.url, password).removeprefix("postgresql:")
    installation.run("run", "orders", exits=None, **{name: f"postgresql+psycopg2:{working}"})
    unreachable = f"postgresql+psycopg2://ann:{password}@127.0.0.1:1/dagster"
    installation.run("run", "orders", exits=None, **{name: unreachable})
    dagster_yaml.unlink()


def _use_a_bucket(installation: Installation, store: ObjectStore) -> None:
    bucket = store.new_bucket()
    installation.sandbox.write_stream("bucket", storage={"root": f"s3://{bucket}/orders"})
    installation.sandbox.land("bucket", {"a.csv": b"id\n1\n"})
    variables = {name: text for name, text in store.environment.items() if "KEY" not in name}
    installation.sandbox = installation.sandbox.with_variables(**variables)
    installation.run("run", "bucket")
    installation.search.bucket(store.client(), bucket)
    word = installation.secrets["password in an endpoint"]
    installation.sandbox.land("bucket", {"b.csv": b"id\n2\n"})
    unreachable = f"http://ann:{word}@127.0.0.1:1"
    installation.run("run", "bucket", exits=None, AWS_ENDPOINT_URL=unreachable)


@pytest.mark.guarantee("S2")
def test_secrets_of_all_settings_are_never_written(
    installation: Installation, figures: Figures
) -> None:
    search = installation.search
    assert search.hits == []
    assert search.places > 300
    figures(
        canaries=len(search.canaries),
        commands=installation.commands,
        places=search.places,
        megabytes=search.size_bytes / 1e6,
        hits=len(search.hits),
    )


@pytest.mark.guarantee("S2")
def test_files_with_secrets_are_accessible_to_owner_only(
    installation: Installation, figures: Figures
) -> None:
    """The umask is 0, so that only the product restricts access."""
    modes = installation.sandbox.folder / "targets" / "talking" / "read.modes"
    assert modes.read_text() == "600 700 "
    assert {*installation.observations.secret_files.values()} <= {OWNER}
    for path in (installation.sandbox.home, installation.sandbox.home / "dagster" / "dagster.yaml"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert list(Path(installation.temporary).glob("*target*")) == []
    figures(files_with_secrets=max(1, len(installation.observations.secret_files)))


@pytest.mark.guarantee("S3")
def test_run_listens_on_loopback_interface_only(
    installation: Installation, figures: Figures
) -> None:
    assert {name for name, _, _ in installation.observations.tcp} >= {"java"}
    assert installation.observations.beyond_loopback == []
    assert installation.observations.open_to_others == []
    figures(
        sockets=len(installation.observations.tcp) + len(installation.observations.unix),
        beyond_loopback=0,
    )
