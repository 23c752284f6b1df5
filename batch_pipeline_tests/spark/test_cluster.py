"""Locations of executors, and settings of a driver by master, environment and Spark's file."""

import sys
from pathlib import Path

import pytest

from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.spark.cluster import (
    Cluster,
    ExecutorLocation,
    check_reachable,
    locate_executors,
    spark_defaults,
)

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
DAEMON = "spark.python.daemon.module"
DAEMON_MODULE = "batch_pipeline.spark.sessions.worker_daemon"


def conf_of(
    tmp_path: Path,
    master: str,
    *,
    packed: Path | None = None,
    environment: dict[str, str] | None = None,
    conf: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of a driver."""
    cluster = Cluster(master=master, environment=environment or {}, packed=packed)
    return cluster.conf(tmp_path, tmp_path, ["-Dours=1"], conf or {})


def test_conf_of_remote_executors_leaves_the_address_to_spark(tmp_path: Path) -> None:
    """Remote executors can reach neither the loopback interface nor Unix sockets."""
    conf = conf_of(tmp_path, "yarn")
    assert "spark.driver.host" not in conf
    assert "spark.driver.bindAddress" not in conf
    assert [key for key in conf if "unix" in key] == []
    assert "spark.local.dir" not in conf
    assert conf["spark.master"] == "yarn"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "local-cluster[2,1,1024]"])
def test_conf_of_executors_on_this_machine_binds_loopback(tmp_path: Path, master: str) -> None:
    """They use this Python, whose daemon has imported the package."""
    conf = conf_of(tmp_path, master)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert (conf["spark.pyspark.python"], conf[DAEMON]) == (sys.executable, DAEMON_MODULE)


def test_conf_of_remote_executors_names_a_python_of_the_same_version(tmp_path: Path) -> None:
    """The driver's path may not exist there, and their Python may lack the daemon module."""
    conf = conf_of(tmp_path, "spark://spark.example.org:7077")
    assert conf["spark.pyspark.python"] == PYTHON
    assert DAEMON not in conf


def test_conf_takes_python_from_settings_before_the_environment(tmp_path: Path) -> None:
    """Arguments win over Spark's file, and that over PYSPARK_PYTHON."""
    folder = tmp_path / "conf"
    folder.mkdir()
    environment = {"PYSPARK_PYTHON": "/of/environment", "SPARK_CONF_DIR": str(folder)}
    key = "spark.pyspark.python"

    assert conf_of(tmp_path, "yarn", environment=environment)[key] == "/of/environment"
    (folder / "spark-defaults.conf").write_text(f"{key}  /of/file\n")
    assert conf_of(tmp_path, "yarn", environment=environment)[key] == "/of/file"
    given = {key: "/of/arguments"}
    assert conf_of(tmp_path, "yarn", environment=environment, conf=given)[key] == "/of/arguments"


def test_conf_of_the_user_wins_and_java_options_are_added(tmp_path: Path) -> None:
    """The master is the only setting that Spark's file cannot change."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# mine\n"
        "spark.ui.enabled=true\n"
        "spark.driver.extraJavaOptions -Dtheirs=1\n"
        "spark.sql.shuffle.partitions: 9\n"
        "spark.master yarn\n"
    )
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    conf = conf_of(tmp_path, "spark://h:7077", environment=environment)
    assert (conf["spark.ui.enabled"], conf["spark.sql.shuffle.partitions"]) == ("true", "9")
    assert conf["spark.driver.extraJavaOptions"].endswith(" -Dtheirs=1")
    assert "-Dours=1" in conf["spark.driver.extraJavaOptions"]
    assert conf["spark.master"] == "spark://h:7077"


def test_spark_defaults_reads_properties_like_java(tmp_path: Path) -> None:
    """Comments, three kinds of separators, continued lines, escapes."""
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "#spark.a 1\n! spark.b 2\n\nspark.c 3 and more\nspark.d=4\nspark.e : 5\nspark.f \\\n   6\n"
        "spark.g C\\:\\\\x\nspark.empty=\n"
    )
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.c": "3 and more",
        "spark.d": "4",
        "spark.e": "5",
        "spark.f": "6",
        "spark.g": "C:\\x",
        "spark.empty": "",
    }


def test_conf_with_a_packed_archive_adds_it_and_its_path(tmp_path: Path) -> None:
    """The user's archives and paths stay, and workers start from the daemon."""
    given = {"spark.archives": "s3a://b/a.zip#a", "spark.executorEnv.PYTHONPATH": "/opt/mine"}
    conf = conf_of(tmp_path, "yarn", packed=Path("/x/p.tar.gz"), conf=given)
    assert conf["spark.archives"] == "s3a://b/a.zip#a,file:///x/p.tar.gz#batch_pipeline_packed"
    assert conf["spark.executorEnv.PYTHONPATH"] == (
        "batch_pipeline_packed:../batch_pipeline_packed:/opt/mine"
    )
    assert (conf["spark.pyspark.python"], conf[DAEMON]) == (PYTHON, DAEMON_MODULE)


def test_conf_forwards_s3_settings_without_secrets(tmp_path: Path) -> None:
    """Endpoint and region are forwarded; keys are not."""
    environment = {
        "AWS_ENDPOINT_URL": "http://store:9000",
        "AWS_ENDPOINT_URL_S3": "http://me:hidden@store:9000",
        "AWS_REGION": "eu-south-1",
        "AWS_ACCESS_KEY_ID": "hidden",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_SESSION_TOKEN": "hidden",
        "AWS_PROFILE": "mine",
    }
    conf = conf_of(tmp_path, "yarn", environment=environment)
    assert {key: value for key, value in conf.items() if "AWS" in key} == {
        "spark.executorEnv.AWS_ENDPOINT_URL": "http://store:9000",
        "spark.executorEnv.AWS_REGION": "eu-south-1",
    }
    assert "hidden" not in " ".join(conf.values())


def test_driver_environment_names_scratch_folder_and_interface(tmp_path: Path) -> None:
    """Without SPARK_LOCAL_IP it binds loopback only for executors on this machine."""
    near = Cluster(master="spark://127.0.0.1:7077", environment={})
    far = Cluster(master="yarn", environment={})
    configured = Cluster(master="yarn", environment={"SPARK_LOCAL_IP": "10.0.0.7"})
    java = Path("/java")

    clusters = (near, far, configured)
    environments = [cluster.driver_environment(java, tmp_path, "p3") for cluster in clusters]

    assert [one.get("SPARK_LOCAL_IP") for one in environments] == ["127.0.0.1", None, "10.0.0.7"]
    assert {one["SPARK_LOCAL_DIRS"] for one in environments} == {str(tmp_path)}
    assert {one["PYSPARK_PYTHON"] for one in environments} == {"p3"}


def test_driver_environment_of_a_local_cluster_has_a_home_in_the_scratch_folder(
    tmp_path: Path,
) -> None:
    """Workers write into the Spark home, which is else the installed package."""
    cluster = Cluster(master="local-cluster[2,1,1024]", environment={})
    home = Path(cluster.driver_environment(Path("/java"), tmp_path, "p3")["SPARK_HOME"])
    assert home.parent == tmp_path
    assert (home / "work").is_dir()
    assert not (home / "work").is_symlink()
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-submit").is_file()


MASTERS = {
    ExecutorLocation.DRIVER: ("local", "local[*]", "local[2, 4]"),
    ExecutorLocation.SAME_MACHINE: (
        *("local-cluster[2,1,1024]", "spark://127.0.0.1:7077"),
        *("spark://localhost", "spark://[::1]:7077"),
    ),
    ExecutorLocation.REMOTE: (
        *("spark://localhost:7077,10.0.0.1:7077", "spark://localhost.example.org:7077"),
        *("k8s://https://127.0.0.1:6443", "yarn"),
    ),
}


@pytest.mark.parametrize(
    ("master", "location"), [(one, where) for where, some in MASTERS.items() for one in some]
)
def test_locate_executors_of_a_master(master: str, location: ExecutorLocation) -> None:
    """Only a master that no other machine can reach has all executors on this machine."""
    assert locate_executors(master) is location


def test_check_reachable_without_an_answer_raises_with_the_reason() -> None:
    """All addresses are tried first."""
    with pytest.raises(SparkUnavailableError) as raised:
        check_reachable("spark://127.0.0.1:1,127.0.0.1:2")
    assert raised.value.reason == "connection refused"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,1]"])
def test_check_reachable_of_a_master_without_address_does_nothing(master: str) -> None:
    check_reachable(master)
