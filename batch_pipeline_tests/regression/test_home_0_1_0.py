"""What release 0.1.0 left is opened, upgraded and continued: nothing lost, nothing twice."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.model.location import to_path
from batch_pipeline_tests.regression.home_0_1_0 import Home

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
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
    """Read the key of each record of a batch of `orders`."""
    texts = [Path(to_path(part["uri"])).read_bytes() for part in manifest["part_files"]]
    lines = [line for text in texts for line in gzip.decompress(text).splitlines()]
    return [json.loads(line)["order_id"] for line in lines]


def newest(home: Home) -> dict[str, dict[str, Any]]:
    """Return the manifests of the newest generations of the stream's own batches."""
    every = [json.loads(path.read_text("utf-8")) for path in home.manifest_files()]
    own = [one for one in every if one["stream"] == "orders"]
    ordered = sorted(own, key=lambda one: int(one["generation"]))
    return {one["batch_id"]: one for one in ordered}


def sent(messages: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Count the records that the tap sent by stream and key."""
    records = [one for one in messages if one["type"] == "RECORD"]
    keys = {"orders": "order_id", "invoices": "id"}
    return Counter((one["stream"], one["record"][keys[one["stream"]]]) for one in records)


def test_home_of_0_1_0_opened_by_this_release_is_whole(old_home: Home) -> None:
    """Expect each batch in the state in which it was left, and every file to be right."""
    old_home.done("migrate")
    streams = {one["stream"]: one for one in old_home.json("status")["streams"]}
    counts = {
        name: {state: n for state, n in one["batches"].items() if n}
        for name, one in streams.items()
    }
    assert counts == {
        "orders": {"planned": 1, "published": 4, "superseded": 1},
        "invoices": {"published": 2},
    }
    assert streams["orders"]["unfinished"][0]["batch_id"] == SEVENTH
    old_home.done("verify", "--all", "--deep")
    assert sent(old_home.tap(old_home.old_state())) == Counter()


def test_home_of_0_1_0_continued_by_this_release_publishes_the_rest_once(old_home: Home) -> None:
    """Expect new files in new batches behind the old ones, for messages, targets and Dagster."""
    home = old_home
    home.done("migrate")
    home.land_order(8)
    home.land_invoice(6)
    home.done("run")
    before = {file: (one["attempt"], one["generation"]) for file, one in newest(home).items()}
    assert before == {
        FIRST: (2, 2),
        "000000000003-000000000004": (1, 1),
        "000000000005-000000000005": (2, 1),
        "000000000006-000000000006": (1, 1),
        SEVENTH: (1, 1),
        EIGHTH: (1, 1),
    }
    first_new = sent(home.tap(home.old_state()))
    new_ids = [("orders", one) for one in (71, 72, 73, 81, 82, 83)]
    assert first_new == Counter([*new_ids, ("invoices", 61), ("invoices", 62)])
    state = home.tap(home.old_state())[-1]["value"]
    assert sent(home.tap(state)) == Counter()

    home.done("reprocess", "orders", "--batch", FIRST)
    assert newest(home)[FIRST]["generation"] == 3
    assert sorted(one for m in newest(home).values() for one in order_ids(m)) == ORDER_IDS
    again = sent(home.tap(state))
    assert again == Counter(("orders", one) for one in (11, 12, 13, 21, 22, 23))

    [loads] = home.json("load", "orders")["targets"]
    assert [(one["batch_id"], one["generation"]) for one in loads["batches"]] == [
        (SEVENTH, 1),
        (EIGHTH, 1),
        (FIRST, 3),
    ]
    assert home.query("SELECT order_id FROM sales.orders ORDER BY 1") == [(n,) for n in ORDER_IDS]
    home.done("verify", "--all", "--deep")
    with home.dagster() as (instance, _):
        assert instance.get_dynamic_partitions("orders.batches") == [*OLD_PARTITIONS, EIGHTH]


def test_partitions_of_0_1_0_stay_materialized_in_dagster(old_home: Home) -> None:
    """Expect the batches that release 0.1.0 published to be green without a new event."""
    old_home.done("migrate")
    with old_home.dagster() as (instance, _):
        batches = instance.get_materialized_partitions(dg.AssetKey(["orders", "batches"]))
        backfill = instance.get_materialized_partitions(dg.AssetKey(["orders", "backfill"]))
    assert batches == {*OLD_PARTITIONS} - {"000000000005-000000000006", SEVENTH}
    assert backfill == {"2023:000000000001-000000000002", "2023:000000000003-000000000003"}
