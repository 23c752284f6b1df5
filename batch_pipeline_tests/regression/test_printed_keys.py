"""Keys that programs read are unchanged: `--json`, messages, manifests, metadata, metrics.

Each command runs once on the home of release 0.1.0, in an order in which it has something to print.
"""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg

from batch_pipeline_tests.regression import public_names
from batch_pipeline_tests.regression.home_0_1_0 import Home
from batch_pipeline_tests.regression.snapshots import as_entries, compare, key_paths

FIRST = "00000001-00000002"
BEFORE_WORK = (
    *("migrate", "doctor", "status", "explain 3", "explain invoice-4.jsonl", "explain absent.csv"),
    *("jobs list", "jobs list orders", "verify --all", "reconcile --all", "reconcile --no-audit"),
    "gc --dry-run",
    "plan orders --backfill again --item 1 --dry-run",
)
AFTER_LANDING = (
    *("plan orders", "plan orders --backfill again --item 1", "run", "status"),
    *("explain orders-9.csv", "explain orders-1.csv", "jobs list orders", "jobs cancel orders"),
    *("jobs retry orders", "jobs split orders --batch 00000008-00000009", "load orders"),
    *(
        "jobs pause orders",
        "status",
        "jobs resume orders",
        f"reprocess orders --batch {FIRST} --dry-run",
    ),
    *(f"reprocess orders --batch {FIRST}", "load orders", "reconcile --discard", "gc"),
    *("verify --last 2", "init {folder}/project --from {folder}/landing/orders"),
)
_COLUMNS = "schema.properties."


def test_json_output_keys_are_unchanged(old_home: Home) -> None:
    keys: set[str] = set()
    for line in BEFORE_WORK:
        keys |= set(_printed(old_home, line))
    old_home.land_order(8)
    old_home.land_order(9, b"order_id,order_id\n1,2\n")
    old_home.land_invoice(6)
    for line in AFTER_LANDING:
        keys |= set(_printed(old_home, line))
    compare("json_keys.json", as_entries(keys))


def test_message_manifest_and_metadata_keys_are_unchanged(old_home: Home) -> None:
    """Includes a backfill, late items, a second generation, a load and all checks."""
    home = old_home
    home.run_ok("migrate")
    old_manifests = set(home.manifest_files())
    home.land_order(8, b"order_id,city,price,note\n81,Bern,1.50,new column\n82\n")
    home.land_invoice(7)
    home.run_ok("plan", "orders", "--backfill", "again", "--item", "1")
    home.run_ok("run")
    home.land_invoice(6)  # late
    home.run_ok("reconcile", "--all")
    home.run_ok("run")
    home.run_ok("reprocess", "orders", "--batch", FIRST)
    with home.dagster() as (instance, definitions):
        for job in ("orders_load", "batch_pipeline_check_streams", "batch_pipeline_reconcile"):
            result = definitions.resolve_job_def(job).execute_in_process(instance=instance)
            assert result.success, job
        metadata = set(_metadata(instance))
    keys = set(_keys_of_messages(home))
    for path in set(home.manifest_files()) - old_manifests:
        manifest = json.loads(path.read_text("utf-8"))
        keys |= {f"manifest {path}" for path in _without_columns(key_paths(manifest))}
    compare("message_keys.json", as_entries(keys))
    compare("dagster_metadata.json", as_entries(metadata))


def test_metric_names_are_unchanged(old_home: Home) -> None:
    old_home.run_ok("migrate")
    with old_home.pipeline() as pipeline:
        compare("metrics.json", public_names.metrics(pipeline))


def _printed(home: Home, line: str) -> Iterator[str]:
    words = [word.format(folder=home.folder) for word in line.split()]
    options = [word for word in words if word.startswith("--")]
    name = " ".join(words[:2]) if line.startswith("jobs ") else words[0]
    command = " ".join(
        [name, *(option for option in options if option in {"--dry-run", "--backfill"})]
    )
    for path in _without_columns(key_paths(home.json(*words))):
        yield f"{command}: {path}"


def _keys_of_messages(home: Home) -> Iterator[str]:
    printed = [
        json.loads(line)
        for stream in ("orders", "invoices")
        for line in home.run_ok("messages", stream).splitlines()
    ]
    messages = {"tap": home.tap(mode="record") + home.tap(mode="batch"), "messages": printed}
    for source, source_messages in messages.items():
        for message in source_messages:
            yield from (
                f"{source} {message['type']} {path}"
                for path in _without_columns(key_paths(message))
            )


def _without_columns(paths: Iterator[str]) -> Iterator[str]:
    """Yield key paths without names of columns."""
    return (path for path in paths if not path.startswith("record.") and _COLUMNS not in path)


def _metadata(instance: dg.DagsterInstance) -> Iterator[str]:
    entries = (entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id))
    for event in (entry.dagster_event for entry in entries if entry.dagster_event is not None):
        data: Any = event.event_specific_data
        check = ""
        if isinstance(data, dg.AssetCheckEvaluation):
            check = f" {data.check_name}"
        elif event.is_step_materialization:
            data = data.materialization
        elif event.is_asset_observation:
            data = data.asset_observation
        else:
            continue
        for key in data.metadata:
            yield f"{event.event_type_value} {data.asset_key.to_user_string()}{check}: {key}"
