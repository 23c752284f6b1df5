"""What Dagster loads: the asset graph, Dagster jobs and sensors of streams, with nothing opened."""

from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, Storage
from batch_pipeline_tests.factories import stream

pytestmark = [
    # Dagster looks at its resources with names that pydantic wants to give up.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]

STREAM_SENSORS = ["_backfill", "_late", "_new_files"]


def _definitions(folder: Path, *names: str) -> dg.Definitions:
    root = to_uri(folder / "absent")
    streams = [
        stream(name=name, source=Source(uri=root), storage=Storage(root=root)) for name in names
    ]
    return build_definitions(streams)


def test_asset_graph_of_a_stream(tmp_path: Path) -> None:
    """Expect four assets in one group, three of them fed by the meta table."""
    graph = _definitions(tmp_path, "orders").resolve_asset_graph()
    seen = {
        key.path[1]: (
            graph.get(key).group_name,
            sorted(graph.get(key).kinds),
            getattr(graph.get(key).partitions_def, "name", None),
            [parent.path[1] for parent in graph.get(key).parent_keys],
        )
        for key in graph.get_all_asset_keys()
    }
    encoded = ["jsonl", "spark"]
    assert seen == {
        "meta_table": ("orders", ["postgres"], None, []),
        "batches": ("orders", encoded, "orders.batches", ["meta_table"]),
        "backfill": ("orders", encoded, "orders.backfill", ["meta_table"]),
        "late": ("orders", encoded, None, ["meta_table"]),
    }
    assert all(graph.get(key).description for key in graph.get_all_asset_keys())


def test_jobs_and_sensors_of_streams(tmp_path: Path) -> None:
    """Expect four Dagster jobs and three sensors a stream, five jobs and two sensors for all."""
    definitions = _definitions(tmp_path, "orders", "refunds")
    repository = definitions.get_repository_def()
    mine = {
        f"{stream}_{what}"
        for stream in ("orders", "refunds")
        for what in ("register", "encode", "encode_backfill", "late")
    }
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    maintenance = {"reconcile", "collect_garbage", "check_streams", "check_checksums"}
    assert jobs == {*mine, *maintenance, "plan_backfill"}
    sensors = {sensor.name for sensor in repository.sensor_defs}
    own = {f"{stream}{what}" for stream in ("orders", "refunds") for what in STREAM_SENSORS}
    assert sensors == {*own, "failed_runs", "cancelled_runs"}
    assert all(
        sensor.default_status is dg.DefaultSensorStatus.RUNNING for sensor in repository.sensor_defs
    )


def test_names_of_streams_do_not_meet_those_of_the_product(tmp_path: Path) -> None:
    """Expect streams with unlucky names to load together."""
    unlucky = ["plan", "plan_encode", "failed", "cancelled", "orders.backfill", "orders"]
    repository = _definitions(tmp_path, *unlucky).get_repository_def()
    assert len(repository.get_all_jobs()) >= 4 * len(unlucky) + 1


def test_loading_opens_and_writes_nothing(tmp_path: Path) -> None:
    """Expect no file or folder where streams land and are stored."""
    _definitions(tmp_path, "orders").get_repository_def()
    assert list(tmp_path.iterdir()) == []
