"""The files that a deployment starts from: what must hold of them, whoever edits them next."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.compute_log_manager import ComputeLogManager
from pathspec import PathSpec

from batch_pipeline.defs.instance.served_runs import ServedRunLauncher
from batch_pipeline.domain.failpoint import VARIABLE as FAILPOINT
from batch_pipeline.settings.environment import ENV_FILE, PREFIX, Settings
from batch_pipeline.spark.sessions.java import VARIABLE as JAVA
from batch_pipeline_tests.architecture.deployed import FOLDER, names, text, values

OWN = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields} | {ENV_FILE, JAVA}
# Where an installed package reads a variable that is not this product's.
READ_IN = {
    "AWS_SHARED_CREDENTIALS_FILE": ("botocore", "configprovider.py", "session.py"),
    "AWS_REGION": ("batch_pipeline", "stores/s3.py"),
    "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": (
        "dagster",
        "_core/execution/asset_backfill.py",
    ),
    "DAGSTER_HOME": ("dagster", "_core/instance/config.py", "_core/instance/factory.py"),
    "DAGSTER_DISABLE_TELEMETRY": ("dagster", "_core/telemetry_upload.py"),
    "JAVA_HOME": ("pyspark", "bin/spark-class"),
    "PYSPARK_PYTHON": ("pyspark", "bin/pyspark"),
    "SPARK_CONF_DIR": ("pyspark", "bin/load-spark-env.sh"),
}
# Those of programs that are not installed here: uv while the image is built, Postgres's own image.
ELSEWHERE = {
    "PATH",
    "POSTGRES_DB",
    "POSTGRES_PASSWORD_FILE",
    "PYTHONDONTWRITEBYTECODE",
    "UV_LINK_MODE",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON_DOWNLOADS",
}
SERVICES: dict[str, dict[str, Any]] = values("compose.yaml")["services"]
ONE_SHOT = {"migrate", "migrate-dagster"}  # they end, and others wait for their end
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("batch-pipeline:")}
PAGE = (FOLDER / "../docs/operating/production.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in names() if name.endswith((".yaml", ".json"))])
def test_settings_files_are_mappings(name: str) -> None:
    """Expect every YAML and JSON file to be one mapping."""
    assert isinstance(values(name), dict)


def test_published_ports_are_those_of_the_proxy() -> None:
    """Expect no other part to be reachable from outside, and none on the host's network."""
    assert [name for name, one in SERVICES.items() if "ports" in one] == ["proxy"]
    assert [name for name, one in SERVICES.items() if "network_mode" in one] == []


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_confined(name: str) -> None:
    """Expect a user without rights, a file system that cannot be written, and an end to logs."""
    one = SERVICES[name]
    user, _, group = one["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in one
    assert set(one["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_looked_after(name: str) -> None:
    """Expect a health check and a restart of what stays, and neither of what ends."""
    one = SERVICES[name]
    if name in ONE_SHOT:
        assert one["healthcheck"] == {"disable": True}
        assert one["restart"] == "no"
    else:
        assert one["healthcheck"]["test"][0] == "CMD"
        assert one["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_service_names_what_is_declared(name: str) -> None:
    """Expect secrets, volumes, networks and services that it names to be there."""
    declared, one = values("compose.yaml"), SERVICES[name]
    secrets = [s if isinstance(s, str) else s["source"] for s in one.get("secrets", [])]
    assert set(secrets) <= set(declared["secrets"])
    assert set(one["networks"]) <= set(declared["networks"])
    assert set(one.get("depends_on", {})) <= set(SERVICES)
    for volume in one.get("volumes", []):
        source = volume.partition(":")[0]
        is_file = source.startswith("./") and (FOLDER / source).is_file()
        assert is_file or source in {*declared["volumes"], "./streams"}, volume


def test_commands_of_spark_have_a_word_for_each_value() -> None:
    """Expect no `--host=…`: Spark's master and workers print their usage for it and end."""
    commands = [one["command"] for one in SERVICES.values() if one.get("command", "")]
    of_spark = [one for one in commands if one[0] == "spark-class"]
    assert len(of_spark) == 2
    assert [word for one in of_spark for word in one if re.match(r"--\w[\w-]*=", word)] == []


def test_page_on_production_tells_of_every_file() -> None:
    """Expect each file of the folder in its table."""
    assert [name for name in names() if f"`{name}`" not in PAGE] == []


def test_homes_belong_to_one_container_each() -> None:
    """Expect no volume at the home: two containers would clear away each other's scratch files."""
    home = "/var/lib/batch-pipeline"
    assert len(OURS) == 7
    for one in OURS.values():
        assert [v for v in one["volumes"] if home in v] == []
        assert [t for t in one["tmpfs"] if t.startswith(f"{home}:exec,")] != []


def test_runs_at_a_time_fit_the_workers() -> None:
    """Expect cores and memory for each run that Dagster starts: one without them gives up."""
    runs = values("dagster.yaml")["concurrency"]["runs"]["max_concurrent_runs"]
    words = SERVICES["spark-worker"]["command"]
    cores, memory = (words[words.index(name) + 1] for name in ("--cores", "--memory"))
    told = dict(re.findall(r"'(cores\.max|executor\.memory) (\d+)g?'", PAGE))
    assert runs * int(told["cores.max"]) <= int(cores)
    assert runs * int(told["executor.memory"]) <= int(memory.removesuffix("g"))


@pytest.mark.parametrize("name", OURS)
def test_python_of_drivers_and_workers_is_the_same(name: str) -> None:
    """Expect its whole path: without it Spark starts each worker of Python anew, in its own way."""
    assert OURS[name]["environment"]["PYSPARK_PYTHON"] == "/opt/venv/bin/python"


@pytest.mark.parametrize("name", ["code-location", "spark-worker"])
def test_copies_of_files_lie_on_a_disk(name: str) -> None:
    """Expect TMPDIR on a volume of the service's own: what is on a tmpfs takes memory."""
    folder = SERVICES[name]["environment"]["TMPDIR"]
    [volume] = [one for one in SERVICES[name]["volumes"] if one.endswith(f":{folder}")]
    assert volume.partition(":")[0] in values("compose.yaml")["volumes"]
    assert [other for other, one in SERVICES.items() if volume in one.get("volumes", [])] == [name]
    # A new volume belongs to whom the folder of the image belongs to.
    made = re.search(r"install --directory --owner=pipeline (?:.*\\\n)*.*", text("Containerfile"))
    assert made is not None
    assert folder in made.group().split()


@pytest.mark.parametrize("name", ["git", "image", "package"])
def test_secrets_in_the_folder_of_the_package_get_nowhere(name: str) -> None:
    """Expect no commit, image or wheel to have them, and the page to put them elsewhere."""
    project = Path(str(FOLDER)).parents[1]
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    ignored = {
        "git": (project / ".gitignore").read_text(encoding="utf-8").splitlines(),
        "image": text("Containerfile.dockerignore").splitlines(),
        "package": settings["tool"]["hatch"]["build"]["exclude"],
    }
    secret = ["batch_pipeline/deploy/secrets/x.env", "batch_pipeline/deploy/streams/a/defs.yaml"]
    taken = ["batch_pipeline/deploy/compose.yaml", "batch_pipeline/cli/pack.py", "uv.lock"]
    # The three read such patterns in the same way.
    patterns = PathSpec.from_lines("gitignore", ignored[name])
    assert sorted(patterns.match_files([*secret, *taken])) == secret
    assert "cd batch_pipeline" not in PAGE


def test_images_have_versions() -> None:
    """Expect every image to be named with a version, and never with `latest`."""
    helm = values("helm-values.yaml")
    images = [one["image"] for one in SERVICES.values()]
    images += re.findall(r"^(?:FROM|COPY --from=)\s*([\w./-]+[/:]\S+)", text("Containerfile"), re.M)
    deployments = helm["dagster-user-deployments"]["deployments"]
    parts = [helm["dagsterWebserver"], helm["dagsterDaemon"], *deployments]
    images += [f"{one['image']['repository']}:{one['image']['tag']}" for one in parts]
    assert len(images) > 10
    assert [one for one in images if not re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", one)] == []


@pytest.mark.parametrize("name", names())
def test_file_holds_no_secret(name: str) -> None:
    """Expect no URL with a password, no key of AWS and no private key in any file."""
    assert re.findall(r"://[^/\s:@]+:[^/\s@]+@", text(name)) == []
    assert re.findall(r"AKIA|ASIA|PRIVATE KEY|aws_secret_access_key", text(name)) == []


def test_image_does_not_run_as_root() -> None:
    """Expect a numbered user, a health check, and no secret asked for while it is built."""
    lines = text("Containerfile").splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    assert len([line for line in lines if line.startswith("HEALTHCHECK")]) == 1
    assert [line for line in lines if re.match(r"ARG|ADD|.*--mount=type=secret", line)] == []


def test_image_copies_what_is_there() -> None:
    """Expect every file that the image takes from the project to be in it."""
    project = Path(str(FOLDER)).parents[1]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text("Containerfile"), re.M)
    named = [name for line in copied for name in line.split()]
    assert "uv.lock" in named
    assert [name for name in named if not (project / name).exists()] == []


@pytest.mark.parametrize("name", names())
def test_variables_of_a_file_exist(name: str) -> None:
    """Expect every variable that a file sets or reads to be one that somebody reads."""
    found = set(re.findall(r"\b(?:[A-Z][A-Z0-9]*_)+[A-Z0-9]+\b", _without_comments(name)))
    found -= {"NO_SUPERUSER", "ON_ERROR_STOP"}  # of psql
    assert found <= OWN | set(READ_IN) | ELSEWHERE
    assert FAILPOINT not in found


@pytest.mark.parametrize("name", READ_IN)
def test_variable_of_others_is_read_by_them(name: str) -> None:
    """Expect the package that a variable is meant for to have it in its source."""
    package, *places = READ_IN[name]
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    there = [place for place in places if (folder / place).is_file()]
    assert there != []
    assert any(name in (folder / place).read_text(encoding="utf-8") for place in there)


def test_dagster_yaml_is_one_that_dagster_takes(tmp_path: Path) -> None:
    """Expect Dagster to accept every key, and each class to accept its settings."""
    (tmp_path / "dagster.yaml").write_text(text("dagster.yaml"))
    settings, _ = dagster_instance_config(str(tmp_path))
    assert settings["run_monitoring"]["max_runtime_seconds"] == 86400
    ref = InstanceRef.from_dir(str(tmp_path))
    launcher, logs = ref.run_launcher_data, ref.compute_logs_data
    assert launcher is not None
    assert type(launcher.rehydrate(as_type=ServedRunLauncher)) is ServedRunLauncher
    taken = _config_type(logs.module_name, logs.class_name)
    assert process_config(resolve_to_config_type(taken), logs.config_dict).success
    assert issubclass(_class(logs.module_name, logs.class_name), ComputeLogManager)


def test_charts_have_the_same_limits_as_dagster_yaml() -> None:
    """Expect Kubernetes and Compose to start from the same limits, timeouts and retention."""
    helm, dagster = values("helm-values.yaml"), values("dagster.yaml")
    daemon = helm["dagsterDaemon"]
    assert _snake(helm["concurrency"]["runs"]) == dagster["concurrency"]["runs"]
    assert _snake(helm["concurrency"]["pools"]) == dagster["concurrency"]["pools"]
    monitoring = _snake(daemon["runMonitoring"])
    assert dagster["run_monitoring"].items() <= monitoring.items()
    assert _snake(daemon["runRetries"]) == dagster["run_retries"]
    assert _snake(helm["retention"]["sensor"]) == dagster["retention"]["sensor"]
    assert _snake(helm["retention"]["schedule"]) == dagster["retention"]["schedule"]


def test_chart_is_reached_from_inside_only() -> None:
    """Expect no ingress, no database of the chart's own, and passwords from secrets."""
    helm = values("helm-values.yaml")
    assert helm["ingress"] == {"enabled": False}
    assert helm["postgresql"]["enabled"] is False
    assert helm["generatePostgresqlPasswordSecret"] is False
    assert "postgresqlPassword" not in helm["postgresql"]
    assert helm["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    assert helm["dagsterWebserver"]["service"]["type"] == "ClusterIP"


def _without_comments(name: str) -> str:
    comment = "--" if name.endswith(".sql") else "#"
    lines = text(name).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(comment))


def _class(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=[name]), name)


def _config_type(module: str, name: str) -> Any:
    return _class(module, name).config_type()


def _snake(given: dict[str, Any]) -> dict[str, Any]:
    return {
        re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", key): (
            _snake(value) if isinstance(value, dict) else value
        )
        for key, value in given.items()
    }
