"""The home of release 0.1.0 is opened, upgraded and continued without loss or duplicates."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.model.location import to_path
from batch_pipeline_tests.regression.home_0_1_0 import Home

FIRST = "000000000001-000000000002"
SEVENTH = "000000000007-000000000007"
EIGHTH = "000000000008-000000000008"
OLD_PARTITIONS = [
    FIRST,
    "000000000003-000000000004",
    "000000000005-000000000006",
    "000000000005-000000000005",
    "000000000006-000000000006",
    SEVENTH,
]
ORDER_IDS = [10 * file + line for file in range(1, 9) for line in (1, 2, 3)]


def order_ids(manifest: dict[str, Any]) -> list[int]:
    """Return the keys of all records of a batch of `orders`."""
    texts = [Path(to_path(part["uri"])).read_bytes() for part in manifest["part_files"]]
    lines = [line for text in texts for line in gzip.decompress(text).splitlines()]
    return [json.loads(line)["order_id"] for line in lines]


def newest(home: Home) -> dict[str, dict[str, Any]]:
    """Return the manifests of the newest generations of the stream's own batches."""
    manifests = [json.loads(path.read_text("utf-8")) for path in home.manifest_files()]
    own = [manifest for manifest in manifests if manifest["stream"] == "orders"]
    ordered = sorted(own, key=lambda manifest: int(manifest["generation"]))
    return {manifest["batch_id"]: manifest for manifest in ordered}


def sent_records(messages: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Count the records that the tap sent by stream and key."""
    records = [message for message in messages if message["type"] == "RECORD"]
    keys = {"orders": "order_id", "invoices": "id"}
    return Counter((it["stream"], it["record"][keys[it["stream"]]]) for it in records)


def test_old_home_is_complete_and_materialized_after_migrate(old_home: Home) -> None:
    old_home.run_ok("migrate")
    streams = {report["stream"]: report for report in old_home.json("status")["streams"]}
    counts = {
        name: {state: n for state, n in report["batches"].items() if n}
        for name, report in streams.items()
    }
    assert counts == {
        "orders": {"planned": 1, "published": 4, "superseded": 1},
        "invoices": {"published": 3},  # one of late items
    }
    assert streams["orders"]["unfinished"][0]["batch_id"] == SEVENTH
    old_home.run_ok("verify", "--all", "--deep")
    assert sent_records(old_home.tap(old_home.old_state())) == Counter()
    with old_home.dagster() as (instance, _):
        batches = instance.get_materialized_partitions(dg.AssetKey(["orders", "batches"]))
        backfill = instance.get_materialized_partitions(dg.AssetKey(["orders", "backfill"]))
    assert batches == {*OLD_PARTITIONS} - {"000000000005-000000000006", SEVENTH}
    assert backfill == {"2023:000000000001-000000000002", "2023:000000000003-000000000003"}


@pytest.mark.long
def test_old_home_is_continued_without_loss_or_duplicates(old_home: Home) -> None:
    home = old_home
    home.run_ok("migrate")
    home.land_order(8)
    home.land_invoice(6)
    home.run_ok("run")
    before = {key: (it["attempt"], it["generation"]) for key, it in newest(home).items()}
    assert before == {
        FIRST: (2, 2),
        "000000000003-000000000004": (1, 1),
        "000000000005-000000000005": (2, 1),
        "000000000006-000000000006": (1, 1),
        SEVENTH: (1, 1),
        EIGHTH: (1, 1),
    }
    first_new = sent_records(home.tap(home.old_state()))
    new_ids = [("orders", order_id) for order_id in (71, 72, 73, 81, 82, 83)]
    assert first_new == Counter([*new_ids, ("invoices", 61), ("invoices", 62)])
    state = home.tap(home.old_state())[-1]["value"]
    assert sent_records(home.tap(state)) == Counter()

    home.run_ok("reprocess", "orders", "--batch", FIRST)
    assert newest(home)[FIRST]["generation"] == 3
    assert sorted(id_ for m in newest(home).values() for id_ in order_ids(m)) == ORDER_IDS
    resent = sent_records(home.tap(state))
    assert resent == Counter(("orders", order_id) for order_id in (11, 12, 13, 21, 22, 23))

    [loads] = home.json("load", "orders")["targets"]
    assert [(batch["batch_id"], batch["generation"]) for batch in loads["batches"]] == [
        (SEVENTH, 1),
        (EIGHTH, 1),
        (FIRST, 3),
    ]
    assert home.query("SELECT order_id FROM sales.orders ORDER BY 1") == [(n,) for n in ORDER_IDS]
    home.run_ok("verify", "--all", "--deep")
    with home.dagster() as (instance, _):
        assert instance.get_dynamic_partitions("orders.batches") == [*OLD_PARTITIONS, EIGHTH]


@pytest.mark.guarantee("G13")
def test_manifest_with_old_key_that_the_inventory_does_not_know_is_detected(
    old_home: Home,
) -> None:
    old_home.run_ok("migrate")
    folder = old_home.folder / "batches/orders/manifests"
    manifest = json.loads((folder / "orders-000000000006-000000000006.g1.json").read_text())
    unknown = folder / f"orders-{SEVENTH}.g1.json"
    unknown.write_text(json.dumps({**manifest, "batch_id": SEVENTH}))
    refused = old_home.run("run", "orders")
    assert refused.exit_code == 1
    assert f"manifests unknown to it: 1, {unknown.name} first" in refused.output
    old_home.run_ok("reconcile", "orders", "--discard")
    assert not unknown.exists()
    old_home.run_ok("run", "orders")
    assert newest(old_home)[SEVENTH]["generation"] == 1


def test_gc_deletes_part_files_with_old_keys(old_home: Home) -> None:
    old_home.run_ok("migrate")
    stream_file = old_home.folder / "streams/orders/defs.yaml"
    text = stream_file.read_text(encoding="utf-8")
    stream_file.write_text(text.replace("  storage:\n", "  storage:\n    keep_superseded: 1d\n"))
    root = old_home.folder / "batches/orders"
    unknown = root / "orders-000000000005-000000000006-a9-0badf00d-00000000-abcdef01.jsonl.gz"
    unknown.touch()
    for path in root.glob("*.*"):
        os.utime(path, (1_750_000_000, 1_750_000_000))
    [superseded] = root.glob("orders-*-a1-5617f084-*")
    [report] = old_home.json("gc", "orders", "--unknown")["streams"]
    deleted = {entry["path"]: entry["reason"] for entry in report["garbage"]}
    assert deleted == {superseded.name: "superseded", unknown.name: "unknown"}
    assert not unknown.exists()
    assert not superseded.exists()
    old_home.run_ok("verify", "--all", "--deep")


@pytest.mark.long
def test_late_batches_are_partitions_of_batches(old_home: Home) -> None:
    """Release 0.1.0 had an asset of late arrivals; their batches get keys of their own."""
    old_home.run_ok("migrate")
    old_home.land_invoice(7)
    old_home.run_ok("run", "invoices")
    old_home.land_invoice(6)
    old_home.run_ok("reconcile", "invoices")
    old_home.run_ok("run", "invoices")
    keys = [f"{first:012d}-{last:012d}" for first, last in ((1, 2), (3, 5), (6, 7))]
    with old_home.dagster() as (instance, _):
        assert instance.get_dynamic_partitions("invoices.batches") == [
            *keys[:2],
            "late-00000007",
            keys[2],
            "late-00000013",
        ]
        materialized = instance.get_materialized_partitions(dg.AssetKey(["invoices", "batches"]))
    assert materialized == {*keys, "late-00000007", "late-00000013"}
