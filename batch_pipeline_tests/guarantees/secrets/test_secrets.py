"""S2 and S3 on the real commands: what they write, what they start, what listens meanwhile.

In the long form every other command is run as well, a bucket is written to, and `dev` is up.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batch_pipeline_tests.guarantees.secrets.dev_answers import look_at_dev
from batch_pipeline_tests.guarantees.secrets.installation import Scene, as_login, open_scene
from batch_pipeline_tests.guarantees.secrets.watcher import OWNER
from batch_pipeline_tests.inventory.logins import copied
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.proofs import Figures


@pytest.fixture(scope="module")
def scene(
    server_url: str, template: str, object_store: ObjectStore, long_form: bool
) -> Iterator[Scene]:
    """The place after everything was run, and failed, once."""
    with copied(server_url, template) as url, open_scene(url) as opened:
        _run_what_is_usual(opened)
        _run_what_is_refused(opened)
        if long_form:
            _run_the_rest(opened)
            _keep_dagsters_runs_elsewhere(opened)
            _use_a_bucket(opened, object_store)
            opened.kill_while_loading()
            look_at_dev(opened)
        opened.look_everywhere()
        yield opened


def _run_what_is_usual(scene: Scene) -> None:
    scene.run("run", exits=3)  # one file is bad
    scene.run("load", "orders", *_targets("table", "talking", "failing", "printing"), exits=3)
    scene.run("status", "--json")


def _run_what_is_refused(scene: Scene) -> None:
    """Let every connection fail, and every setting be wrong, that has a secret in it."""
    words = scene.canaries
    token, password = words["token of Spark Connect"], words["inventory password"]
    scene.run("run", exits=75, BATCH_PIPELINE_SPARK_REMOTE=f"sc://127.0.0.1:1/;token={token}")
    refused = f"postgresql://ann:{password}@127.0.0.1:1/inventory"
    scene.run("status", exits=75, BATCH_PIPELINE_INVENTORY_CONN=refused)
    wrong = scene.sandbox.folder / "wrong" / "orders" / "defs.yaml"
    wrong.parent.mkdir(parents=True)
    stream = (scene.sandbox.streams / "orders" / "defs.yaml").read_text()
    wrong.write_text(stream.replace("$TARGET_PASSWORD", words["password in a stream file"]))
    scene.run("status", exits=1, BATCH_PIPELINE_STREAMS=str(wrong.parents[1]))
    queue = f"https://ann:{words['password in the URL of a queue']}@sqs.eu-west-1.amazonaws.com/1/q"
    source = {"uri": "s3://bucket/orders", "events": {"queue": queue}}
    attributes = {"stream": "orders", "source": source, "storage": {"root": "./b"}}
    document = {"type": "batch_pipeline.BatchStream", "attributes": attributes}
    wrong.write_text(yaml.safe_dump(document))
    scene.run("status", exits=1, BATCH_PIPELINE_STREAMS=str(wrong.parents[1]))
    wrong.unlink()


def _run_the_rest(scene: Scene) -> None:
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
        ("pack", str(scene.sandbox.folder / "packed.tar.gz")),
    ):
        scene.run(*words, exits=None)
    password = scene.canaries["inventory password"]
    for form in ("postgresql://ann:x@{}@127.0.0.1:1/i", "mysql://ann:{}@127.0.0.1:1/i"):
        scene.run("status", exits=1, BATCH_PIPELINE_INVENTORY_CONN=form.format(password))
    other = f"postgresql://ann:se/{scene.canaries['password of a target']}@127.0.0.1:1/x"
    scene.run("load", "orders", "--target", "table", exits=None, WAREHOUSE=other)
    scene.run("run", exits=None, OPS_DB=f"{other}?connect_timeout=1")
    scene.sandbox.land("orders", {"f.csv": b"id\n8\n"})
    crash = "publish.before_commit=raise"  # with a traceback
    scene.run("run", "orders", exits=None, BATCH_PIPELINE_FAILPOINTS=crash)


def _keep_dagsters_runs_elsewhere(scene: Scene) -> None:
    """Let Dagster's storage be a database of a person's own, which works, and one that does not."""
    name = "DAGSTER_STORAGE"
    elsewhere = {"module": "dagster_postgres.storage", "class": "DagsterPostgresStorage"}
    storage = {"custom": {**elsewhere, "config": {"postgres_url": {"env": name}}}}
    own = scene.sandbox.home / "dagster.yaml"
    own.write_text(yaml.safe_dump({"storage": storage}))
    password = scene.canaries["password of Dagster's storage"]
    scene.sandbox.land("orders", {"g.csv": b"id\n9\n"})
    works = as_login(scene.url, password).replace("postgresql:", "postgresql+psycopg2:")
    scene.run("run", "orders", exits=None, **{name: works})
    nobody = f"postgresql+psycopg2://ann:{password}@127.0.0.1:1/dagster"
    scene.run("run", "orders", exits=None, **{name: nobody})
    own.unlink()


def _use_a_bucket(scene: Scene, store: ObjectStore) -> None:
    bucket = store.new_bucket()
    scene.sandbox.write_stream("bucket", storage={"root": f"s3://{bucket}/orders"})
    scene.sandbox.land("bucket", {"a.csv": b"id\n1\n"})
    told = {name: text for name, text in store.environment.items() if "KEY" not in name}
    scene.sandbox = scene.sandbox.with_variables(**told)
    scene.run("run", "bucket")
    scene.search.bucket(store.client(), bucket)
    word = scene.canaries["password in an endpoint"]
    scene.sandbox.land("bucket", {"b.csv": b"id\n2\n"})
    nowhere = f"http://ann:{word}@127.0.0.1:1"
    scene.run("run", "bucket", exits=None, AWS_ENDPOINT_URL=nowhere)


def _targets(*names: str) -> list[str]:
    return [word for name in names for word in ("--target", name)]


@pytest.mark.guarantee("S2")
def test_secrets_of_all_settings_are_found_nowhere(scene: Scene, figures: Figures) -> None:
    search = scene.search
    assert search.hits == []
    assert search.places > 300
    figures(
        canaries=len(search.canaries.words),
        commands=scene.commands,
        places=search.places,
        megabytes=search.octets / 1e6,
        hits=len(search.hits),
    )


@pytest.mark.guarantee("S2")
def test_file_with_a_secret_is_its_owners_alone(scene: Scene, figures: Figures) -> None:
    """The umask is 0: files with secrets are closed by the product."""
    modes = scene.sandbox.folder / "targets" / "talking" / "read.modes"
    assert modes.read_text() == "600 700 "
    assert [one for one in scene.seen.secret_files.values() if one != OWNER] == []
    for kept in (scene.sandbox.home, scene.sandbox.home / "dagster" / "dagster.yaml"):
        assert kept.stat().st_mode & 0o077 == 0, kept
    assert list(Path(scene.temporary).glob("*target*")) == []
    figures(files_with_secrets=max(1, len(scene.seen.secret_files)))


@pytest.mark.guarantee("S3")
def test_run_listens_on_the_loopback_interface_only(scene: Scene, figures: Figures) -> None:
    assert {name for name, _, _ in scene.seen.tcp} >= {"java"}
    assert scene.seen.beyond == []
    assert scene.seen.open_to_others == []
    figures(sockets=len(scene.seen.tcp) + len(scene.seen.unix), beyond_loopback=0)
