"""What a driver tells a cluster, by master, environment and Spark's own settings."""

import sys
from pathlib import Path

import pytest

from batch_pipeline.spark.clusters.conf import Cluster, spark_defaults

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
DAEMON = "spark.python.daemon.module"
OWN_DAEMON = "batch_pipeline.spark.sessions.worker_daemon"


def conf_of(
    tmp_path: Path,
    master: str,
    *,
    packed: Path | None = None,
    environment: dict[str, str] | None = None,
    conf: dict[str, str] | None = None,
) -> dict[str, str]:
    """Give the settings of a driver."""
    cluster = Cluster(master=master, environment=environment or {}, packed=packed)
    return cluster.conf(tmp_path, tmp_path, ["-Dours=1"], conf or {})


def test_driver_of_other_machines_leaves_its_address_to_spark(tmp_path: Path) -> None:
    """Executors elsewhere could not reach the loopback interface, nor sockets of files."""
    conf = conf_of(tmp_path, "yarn")
    assert "spark.driver.host" not in conf
    assert "spark.driver.bindAddress" not in conf
    assert [key for key in conf if "unix" in key] == []
    assert "spark.local.dir" not in conf
    assert conf["spark.master"] == "yarn"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "local-cluster[2,1,1024]"])
def test_driver_of_executors_on_this_machine_is_on_loopback(tmp_path: Path, master: str) -> None:
    """Nobody else has to reach it; Python is this one, with what it has imported already."""
    conf = conf_of(tmp_path, master)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert (conf["spark.pyspark.python"], conf[DAEMON]) == (sys.executable, OWN_DAEMON)


def test_executors_elsewhere_use_a_python_of_the_same_version(tmp_path: Path) -> None:
    """The driver's path is nothing to them, and their Python may not have our daemon."""
    conf = conf_of(tmp_path, "spark://spark.example.org:7077")
    assert conf["spark.pyspark.python"] == PYTHON
    assert DAEMON not in conf


def test_python_of_executors_is_taken_from_settings_before_the_environment(tmp_path: Path) -> None:
    """Arguments come before Spark's file, and that before PYSPARK_PYTHON."""
    folder = tmp_path / "conf"
    folder.mkdir()
    environment = {"PYSPARK_PYTHON": "/of/environment", "SPARK_CONF_DIR": str(folder)}
    key = "spark.pyspark.python"

    assert conf_of(tmp_path, "yarn", environment=environment)[key] == "/of/environment"
    (folder / "spark-defaults.conf").write_text(f"{key}  /of/file\n")
    assert conf_of(tmp_path, "yarn", environment=environment)[key] == "/of/file"
    given = {key: "/of/arguments"}
    assert conf_of(tmp_path, "yarn", environment=environment, conf=given)[key] == "/of/arguments"


def test_settings_of_the_user_win_and_java_options_are_added(tmp_path: Path) -> None:
    """Spark's own file may change what this package sets."""
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


def test_defaults_of_spark_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, three kinds of separators, lines that go on, escapes."""
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


def test_defaults_of_spark_that_are_not_there_are_none(tmp_path: Path) -> None:
    """A folder of settings need not have any."""
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {}


def test_packed_archive_is_handed_to_executors_with_the_path_to_it(tmp_path: Path) -> None:
    """What the user ships beside it stays, and workers start from our daemon."""
    given = {"spark.archives": "s3a://b/a.zip#a", "spark.executorEnv.PYTHONPATH": "/opt/mine"}
    conf = conf_of(tmp_path, "yarn", packed=Path("/x/p.tar.gz"), conf=given)
    assert conf["spark.archives"] == "s3a://b/a.zip#a,file:///x/p.tar.gz#batch_pipeline_packed"
    assert conf["spark.executorEnv.PYTHONPATH"] == (
        "batch_pipeline_packed:../batch_pipeline_packed:/opt/mine"
    )
    assert (conf["spark.pyspark.python"], conf[DAEMON]) == (PYTHON, OWN_DAEMON)


def test_access_to_s3_is_handed_on_without_secrets(tmp_path: Path) -> None:
    """Endpoint and region are the same for all; keys belong to whoever has them."""
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


def test_environment_of_a_driver_names_its_own_scratch_and_interface(tmp_path: Path) -> None:
    """Only where executors are on this machine does it bind the loopback interface by itself."""
    near = Cluster(master="spark://127.0.0.1:7077", environment={})
    far = Cluster(master="yarn", environment={})
    told = Cluster(master="yarn", environment={"SPARK_LOCAL_IP": "10.0.0.7"})
    java = Path("/java")

    found = [one.driver_environment(java, tmp_path, "p3") for one in (near, far, told)]

    assert [one.get("SPARK_LOCAL_IP") for one in found] == ["127.0.0.1", None, "10.0.0.7"]
    assert {one["SPARK_LOCAL_DIRS"] for one in found} == {str(tmp_path)}
    assert {one["PYSPARK_PYTHON"] for one in found} == {"p3"}


def test_workers_of_a_local_cluster_write_into_the_scratch_folder(tmp_path: Path) -> None:
    """Spark would have them write into its home, which is the installed package."""
    cluster = Cluster(master="local-cluster[2,1,1024]", environment={})
    home = Path(cluster.driver_environment(Path("/java"), tmp_path, "p3")["SPARK_HOME"])
    assert home.parent == tmp_path
    assert (home / "work").is_dir()
    assert not (home / "work").is_symlink()
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-submit").is_file()
