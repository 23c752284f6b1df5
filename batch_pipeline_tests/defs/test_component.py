"""The component `BatchStream` in Dagster projects: files, templates, Python, and mistakes."""

from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest
from dagster.components.core.component_tree import ComponentTreeException

from batch_pipeline import BatchStream
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    PipelineError,
    StreamFileError,
)
from batch_pipeline_tests.defs.dg_project import DgProject, make_dg_project

pytestmark = [
    # Dagster looks at what is registered with names that it has yet to settle.
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]

STREAM = """\
type: batch_pipeline.BatchStream
attributes:
  stream: {name}
  source: {{uri: ./landing}}
"""
SHARED_SENSORS = ["batch_pipeline_run_ends"]


@pytest.fixture
def project(tmp_path: Path) -> DgProject:
    """An empty project; no two have one name, because modules stay imported."""
    return make_dg_project(tmp_path, f"shop_{uuid4().hex}")


def sensor_names(definitions: dg.Definitions) -> list[str]:
    """Give the names of all sensors, in order."""
    return sorted(sensor.name for sensor in definitions.get_repository_def().sensor_defs)


def stream_names(definitions: dg.Definitions) -> set[str]:
    """Give the first part of all asset keys."""
    return {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def mistake(project: DgProject, monkeypatch: pytest.MonkeyPatch) -> PipelineError:
    """Load a project that must be refused, and give what we said."""
    with pytest.raises(ComponentTreeException) as caught:
        project.load(monkeypatch)
    told: BaseException | None = caught.value
    while told is not None and not isinstance(told, PipelineError):
        told = told.__cause__
    assert told is not None
    return told


def test_components_of_a_project_have_what_they_share_once(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect three streams, in folders of different depth, to load together."""
    for folder, name in [("a", "orders"), ("b/c", "refunds"), ("z", "visits")]:
        project.write(f"{folder}/defs.yaml", STREAM.format(name=name))
    definitions = project.load(monkeypatch)
    assert stream_names(definitions) == {"orders", "refunds", "visits"}
    names = sensor_names(definitions)
    assert {"orders_new_files", "refunds_new_files", "visits_new_files"} <= {*names}
    assert [name for name in names if name in SHARED_SENSORS] == SHARED_SENSORS
    assert definitions.resolve_job_def("batch_pipeline_reconcile")


def test_component_leaves_the_executor_of_a_project_alone(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect assets of others to run as they did, and our Dagster jobs in one process."""
    project.write("orders/defs.yaml", STREAM.format(name="orders"))
    definitions = project.load(monkeypatch)
    assert definitions.executor is None
    assert definitions.resolve_job_def("orders_encode").executor_def is dg.in_process_executor


def test_component_alone_has_what_streams_share() -> None:
    """Expect a component outside of a project to be complete."""
    attributes = {"stream": "orders", "source": {"uri": "/data"}}
    component = BatchStream.from_attributes_dict(attributes=attributes)
    definitions = dg.build_defs_for_component(component)
    assert {*SHARED_SENSORS} <= {*sensor_names(definitions)}


def test_components_in_one_file_are_told_apart_by_their_lines(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the mistake of the second document at its line of the file."""
    first, second = STREAM.format(name="orders"), STREAM.format(name="refunds")
    path = project.write("both/defs.yaml", f"{first}---\n{second}  key_propertys: [id]\n")
    told = mistake(project, monkeypatch)
    assert str(told).startswith(
        f"{path}:10: unknown key `key_propertys` in `attributes`; did you mean `key_properties`?"
    )


def test_component_paths_start_at_its_file_and_templates_are_filled_in(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a landing from the environment and part files beside the file."""
    monkeypatch.setenv("SHOP_LANDING", "/data/shop")
    text = STREAM.format(name="orders").replace("./landing", '"{{ env.SHOP_LANDING }}/orders"')
    project.write("orders/defs.yaml", text)
    monkeypatch.syspath_prepend(project.root / "src")
    tree = dg.ComponentTree.for_project(project.root)
    stream = tree.load_component("orders", expected_type=BatchStream).stream
    assert stream.source.place == "file:///data/shop/orders"
    assert stream.storage.root == (project.defs / "orders" / "batches").as_uri()


def test_component_file_may_say_what_dagster_adds(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect post-processing of the assets, and more than the two keys of a stream file."""
    after = """
        requirements: {env: []}
        post_processing:
          assets:
            - target: "*"
              attributes: {tags: {layer: raw}}
    """
    project.write("orders/defs.yaml", STREAM.format(name="orders") + _dedented(after))
    graph = project.load(monkeypatch).resolve_asset_graph()
    assert all(graph.get(key).tags["layer"] == "raw" for key in graph.get_all_asset_keys())


def _dedented(text: str) -> str:
    return "\n".join(line[8:] for line in text.splitlines())


def test_component_in_python_is_one_stream_among_those_of_files(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect paths that start at the folder of the module."""
    project.write("orders/defs.yaml", STREAM.format(name="orders"))
    project.write(
        "refunds/component.py",
        """
        import dagster as dg
        from batch_pipeline import BatchStream

        @dg.component_instance
        def load(context: dg.ComponentLoadContext) -> BatchStream:
            attributes = {"stream": "refunds", "source": {"uri": "landing"}}
            return BatchStream.from_attributes_dict(attributes=attributes, context=context)
        """,
    )
    definitions = project.load(monkeypatch)
    assert stream_names(definitions) == {"orders", "refunds"}
    tree = dg.ComponentTree.for_project(project.root)
    places = [one.stream.source.place for one in tree.get_all_components(BatchStream)]
    expected = [(project.defs / name / "landing").as_uri() for name in ("orders", "refunds")]
    assert places == expected


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("type: batch_pipeline.BatchStream\n", 1, "`attributes` is missing"),
        (
            "type: batch_pipeline.BatchStream\nattributes:\n",
            2,
            "`attributes` is empty; expected keys and values",
        ),
        (
            STREAM.format(name="orders") + "  sorce: {uri: a}\n",
            5,
            "unknown key `sorce` in `attributes`; did you mean `source`?",
        ),
        (
            STREAM.format(name="orders") + "  batch:\n    max_count: many\n",
            6,
            "`batch.max_count` is 'many'; expected a whole number",
        ),
        (
            STREAM.format(name="orders") + "  stream: refunds\n",
            5,
            "`stream` is given twice (first on line 3)",
        ),
    ],
)
def test_component_mistakes_name_file_line_and_key(
    project: DgProject, monkeypatch: pytest.MonkeyPatch, text: str, line: int, problem: str
) -> None:
    """Expect the words of stream files, which Dagster shows with the component."""
    path = project.write("orders/defs.yaml", text)
    told = mistake(project, monkeypatch)
    assert isinstance(told, StreamFileError)
    assert str(told).startswith(f"{path}:{line}: {problem}")


def test_components_with_one_name_are_refused(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect no code location in which two streams claim the same batches."""
    project.write("a/defs.yaml", STREAM.format(name="orders"))
    project.write("b/defs.yaml", STREAM.format(name="orders"))
    told = mistake(project, monkeypatch)
    assert isinstance(told, InvalidValueError)
    assert "a name of its own for each stream; 2 have this one" in str(told)


def test_component_in_python_with_a_mistake_names_the_key() -> None:
    """Expect the nearest key where there is no file."""
    attributes = {"stream": "orders", "source": {"uri": "a"}, "batch": {"max_wieght": 1}}
    with pytest.raises(ConfigurationError, match="did you mean `max_weight`"):
        BatchStream.from_attributes_dict(attributes=attributes)
