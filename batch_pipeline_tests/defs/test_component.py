"""The component `BatchStream` in Dagster projects, defined in YAML and in Python."""

from pathlib import Path
from textwrap import dedent
from uuid import uuid4

import dagster as dg
import pytest
from dagster.components.core.component_tree import ComponentTreeException

from batch_pipeline import BatchStream
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import InvalidValueError, PipelineError, StreamFileError
from batch_pipeline_tests.defs.dg_project import DgProject, make_dg_project

# Dagster's component loader uses its own preview APIs.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")

TYPE = "type: batch_pipeline.BatchStream\n"
STREAM = f"""{TYPE}attributes:
  stream: {{name}}
  source: {{{{uri: ./landing}}}}
"""
ORDERS = STREAM.format(name="orders")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    """An empty project with a unique name, because modules stay imported."""
    project = make_dg_project(tmp_path, f"shop_{uuid4().hex}")
    monkeypatch.syspath_prepend(project.root / "src")
    return project


def stream_names(definitions: dg.Definitions) -> set[str]:
    """Return the first parts of all asset keys."""
    return {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def load_error(project: DgProject) -> PipelineError:
    """Load an invalid project and return our error."""
    with pytest.raises(ComponentTreeException) as caught:
        project.load()
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, PipelineError):
        error = error.__cause__
    assert error is not None
    return error


def test_components_of_a_project_share_common_definitions(project: DgProject) -> None:
    """They may be in YAML or in Python."""
    project.write("a/defs.yaml", ORDERS)
    project.write("b/c/defs.yaml", STREAM.format(name="refunds"))
    project.write(
        "visits/component.py",
        """
        import dagster as dg
        from batch_pipeline import BatchStream

        @dg.component_instance
        def load(context: dg.ComponentLoadContext) -> BatchStream:
            attributes = {"stream": "visits", "source": {"uri": "landing"}}
            return BatchStream.from_attributes_dict(attributes=attributes, context=context)
        """,
    )
    definitions = project.load()
    assert stream_names(definitions) == {"orders", "refunds", "visits"}
    names = [sensor.name for sensor in definitions.get_repository_def().sensor_defs]
    assert {"orders_new_files", "refunds_new_files", "visits_new_files"} <= {*names}
    assert names.count("batch_pipeline_run_ends") == 1
    assert definitions.resolve_job_def("batch_pipeline_reconcile")
    assert definitions.executor is None  # the project keeps its own
    tree = dg.ComponentTree.for_project(project.root)
    places = [each.stream.source.place for each in tree.get_all_components(BatchStream)]
    assert (project.defs / "visits" / "landing").as_uri() in places


def test_component_outside_of_a_project_is_complete() -> None:
    attributes = {"stream": "orders", "source": {"uri": "/data"}}
    component = BatchStream.from_attributes_dict(attributes=attributes)
    definitions = dg.build_defs_for_component(component)
    assert definitions.resolve_sensor_def("batch_pipeline_run_ends")


def test_component_resolves_paths_and_templates(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_LANDING", "/data/shop")
    text = ORDERS.replace("./landing", '"{{ env.SHOP_LANDING }}/orders"')
    project.write("orders/defs.yaml", text)
    tree = dg.ComponentTree.for_project(project.root)
    stream = tree.load_component("orders", expected_type=BatchStream).stream
    assert stream.source.place == "file:///data/shop/orders"
    assert stream.storage.root == (project.defs / "orders" / "batches").as_uri()


def test_component_file_accepts_dagster_keys(project: DgProject) -> None:
    keys = """
        requirements: {env: []}
        post_processing:
          assets:
            - target: "*"
              attributes: {tags: {layer: raw}}
    """
    project.write("orders/defs.yaml", ORDERS + dedent(keys))
    graph = project.load().resolve_asset_graph()
    assert all(graph.get(key).tags["layer"] == "raw" for key in graph.get_all_asset_keys())


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (TYPE, 1, "`attributes` is missing"),
        (f"{TYPE}attributes:\n", 2, "`attributes` is empty; expected keys and values"),
        (f"{ORDERS}  stream: refunds\n", 5, "`stream` is given twice (first on line 3)"),
        (f"{ORDERS}---\n{ORDERS}  key_propertys: [id]\n", 10, "unknown key `key_propertys` in"),
    ],
)
def test_mistakes_are_reported_with_file_line_and_key(
    project: DgProject, text: str, line: int, problem: str
) -> None:
    path = project.write("orders/defs.yaml", text)
    error = load_error(project)
    assert isinstance(error, StreamFileError)
    assert str(error).startswith(f"{path}:{line}: {problem}")


@pytest.mark.parametrize("names", [("orders", "orders"), ("a-b", "a_b")])
def test_components_with_the_same_stream_name_are_rejected(
    project: DgProject, names: tuple[str, str]
) -> None:
    for folder, name in zip("ab", names, strict=True):
        project.write(f"{folder}/defs.yaml", STREAM.format(name=name))
    error = load_error(project)
    assert isinstance(error, InvalidValueError)
    shared = f"2 streams share it in Dagster: {', '.join(names)}"
    assert f"a unique name per stream; {shared}" in str(error)


RESOURCES = """\
type: batch_pipeline.BatchResources
attributes:
  inventory_conn: "{{ env.SHOP_DATABASE }}"
  spark_master: local[1]
"""


def test_resources_of_a_project_are_set_in_yaml(
    project: DgProject,
    database: Database,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The variable is read when a run starts, so that Dagster's pages do not show its value."""
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN", raising=False)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOP_DATABASE", "set later")
    for folder, name in [("a", "orders"), ("z", "refunds")]:
        project.write(f"{folder}/defs.yaml", STREAM.format(name=name))
    (project.defs / "a/landing").mkdir()
    project.write("resources/defs.yaml", RESOURCES)
    definitions = project.load()
    resources = definitions.resources or {}
    assert resources["batch_pipeline"].inventory_conn == dg.EnvVar("SHOP_DATABASE")
    assert resources["batch_pipeline_spark"].master == "local[1]"
    monkeypatch.setenv("SHOP_DATABASE", database_url)
    assert definitions.resolve_job_def("orders_register").execute_in_process().success
    assert [report.job.name for report in database.jobs.jobs()] == ["orders"]


def test_resources_of_a_project_are_defined_once(project: DgProject) -> None:
    for folder in ("a", "b"):
        project.write(f"{folder}/defs.yaml", RESOURCES)
    error = load_error(project)
    assert str(error) == "number of BatchResources components is 2; expected at most one."


def test_streams_folder_may_have_resources(tmp_path: Path) -> None:
    """Commands read a folder of components, and take their settings from the environment."""
    for folder, text in (("orders", ORDERS), ("resources", RESOURCES)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "defs.yaml").write_text(text)
    assert [*load_streams(tmp_path)] == ["orders"]
