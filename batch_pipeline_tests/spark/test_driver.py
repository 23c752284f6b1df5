"""Driver settings by master, environment and Spark's file; scratch folder and command."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.spark.driver import (
    DAEMON_MODULE,
    check_cluster,
    create_scratch,
    delete_scratch,
    driver_command,
    driver_settings,
    rotate_log,
    runs_in_driver,
    runs_on_this_machine,
    spark_defaults,
)

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_KEY = "spark.pyspark.python"
DAEMON = "spark.python.daemon.module"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
SOCKETS_ENABLED = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"


def settings_of(
    home: Path,
    master: str,
    *,
    scratch: Path | None = None,
    packed: Path | None = None,
    conf: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings and the environment of a driver on the bundled Java."""
    return driver_settings(
        home,
        scratch or home,
        {"spark.master": master} | (conf or {}),
        packed,
        {"BATCH_PIPELINE_JAVA": "bundled"} | (environment or {}),
    )


def conf_of(home: Path, master: str, **given: dict[str, str]) -> dict[str, str]:
    return settings_of(home, master, **given)[0]  # type: ignore[arg-type]


def test_remote_executors_leave_driver_address_to_spark(tmp_path: Path) -> None:
    """Remote executors can reach neither the loopback interface nor Unix sockets.

    The driver's Python may not exist there, and their Python may lack the daemon module.
    """
    conf, environment = settings_of(tmp_path, "yarn")
    assert "spark.driver.host" not in conf
    assert "spark.driver.bindAddress" not in conf
    assert [key for key in conf if "unix" in key] == []
    assert "spark.local.dir" not in conf
    assert DAEMON not in conf
    assert (conf["spark.master"], conf[PYTHON_KEY]) == ("yarn", PYTHON)
    assert "SPARK_LOCAL_IP" not in environment
    assert environment["SPARK_LOCAL_DIRS"] == str(tmp_path)
    assert environment["PYSPARK_PYTHON"] == PYTHON
    _, environment = settings_of(tmp_path, "yarn", environment={"SPARK_LOCAL_IP": "10.0.0.7"})
    assert environment["SPARK_LOCAL_IP"] == "10.0.0.7"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "local-cluster[2,1,1024]"])
def test_executors_on_this_machine_use_loopback(tmp_path: Path, master: str) -> None:
    """They use this Python, whose daemon has imported the package."""
    conf, environment = settings_of(tmp_path, master)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert (conf[PYTHON_KEY], conf[DAEMON]) == (sys.executable, DAEMON_MODULE)
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_container_id_is_hidden_from_local_spark_only(tmp_path: Path) -> None:
    """Spark takes such a process for one of YARN, and fails without its folders."""
    environment = {"CONTAINER_ID": "fedora"}
    assert "CONTAINER_ID" not in settings_of(tmp_path, "local[2]", environment=environment)[1]
    assert "CONTAINER_ID" in settings_of(tmp_path, "yarn", environment=environment)[1]


def test_python_setting_has_precedence_over_environment(tmp_path: Path) -> None:
    """Arguments have precedence over Spark's file, and that over PYSPARK_PYTHON."""
    folder = tmp_path / "conf"
    folder.mkdir()
    environment = {"PYSPARK_PYTHON": "/of/environment", "SPARK_CONF_DIR": str(folder)}

    assert conf_of(tmp_path, "yarn", environment=environment)[PYTHON_KEY] == "/of/environment"
    (folder / "spark-defaults.conf").write_text(f"{PYTHON_KEY}  /of/file\n")
    assert conf_of(tmp_path, "yarn", environment=environment)[PYTHON_KEY] == "/of/file"
    given = {PYTHON_KEY: "/of/arguments"}
    conf = conf_of(tmp_path, "yarn", environment=environment, conf=given)
    assert conf[PYTHON_KEY] == "/of/arguments"


def test_settings_of_user_have_precedence_and_java_options_are_added(tmp_path: Path) -> None:
    """Only the master cannot be changed by Spark's file."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\n"
        "spark.ui.enabled=true\n"
        "spark.driver.extraJavaOptions -Dtheirs=1\n"
        "spark.sql.shuffle.partitions: 9\n"
        "spark.master yarn\n"
    )
    conf = conf_of(tmp_path, "spark://h:7077", environment={"SPARK_CONF_DIR": str(tmp_path)})
    assert (conf["spark.ui.enabled"], conf["spark.sql.shuffle.partitions"]) == ("true", "9")
    assert conf[JAVA_OPTIONS].startswith("-XX:")
    assert conf[JAVA_OPTIONS].endswith(" -Dtheirs=1")
    assert conf["spark.master"] == "spark://h:7077"


@pytest.mark.parametrize("place", ["JAVA_TOOL_OPTIONS", JAVA_OPTIONS, DEFAULT_OPTIONS])
def test_collector_of_user_replaces_ours(tmp_path: Path, place: str) -> None:
    environment = {"SPARK_CONF_DIR": str(tmp_path), place: "-Dtheirs=1 -XX:+UseG1GC"}
    (tmp_path / "spark-defaults.conf").write_text(f"{place} {environment[place]}\n")
    conf, variables = settings_of(tmp_path, "local", environment=environment)
    assert "-XX:+UseSerialGC" not in conf[JAVA_OPTIONS]
    is_in_all_jvms = place == "JAVA_TOOL_OPTIONS"
    assert ("-XX:+UseSerialGC" in variables["SPARK_LAUNCHER_OPTS"]) is not is_in_all_jvms
    assert "-XX:+UseSerialGC" in conf_of(tmp_path, "local")[JAVA_OPTIONS]


def test_spark_defaults_reads_properties_like_java(tmp_path: Path) -> None:
    """Comments, three kinds of separators, continued lines, escapes."""
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "#spark.a 1\\\n  #2\\\n! spark.b 2\\\nspark.c 3 and more\n\nspark.d=4\nspark.e : 5\n"
        "spark.f \\\n   6\nspark.g C\\:\\\\x\nspark.empty=\n# \u00fc\n",
        encoding="latin-1",
    )
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.c": "3 and more",
        "spark.d": "4",
        "spark.e": "5",
        "spark.f": "6",
        "spark.g": "C:\\x",
        "spark.empty": "",
    }


def test_packed_archive_is_added_to_archives_of_user(tmp_path: Path) -> None:
    """The archive has the daemon module."""
    given = {"spark.archives": "s3a://b/a.zip#a", "spark.executorEnv.PYTHONPATH": "/opt/mine"}
    conf, _ = settings_of(tmp_path, "yarn", packed=Path("/x/p.tar.gz"), conf=given)
    assert conf["spark.archives"] == "s3a://b/a.zip#a,file:///x/p.tar.gz#batch_pipeline_packed"
    assert conf["spark.executorEnv.PYTHONPATH"] == (
        "batch_pipeline_packed:../batch_pipeline_packed:/opt/mine"
    )
    assert (conf[PYTHON_KEY], conf[DAEMON]) == (PYTHON, DAEMON_MODULE)


def test_s3_settings_are_forwarded_without_secrets(tmp_path: Path) -> None:
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


def test_local_cluster_has_spark_home_in_scratch_folder(tmp_path: Path) -> None:
    """Workers write to the Spark home, which would otherwise be the installed package."""
    home = Path(settings_of(tmp_path, "local-cluster[2,1,1024]")[1]["SPARK_HOME"])
    assert home.parent == tmp_path
    assert (home / "work").is_dir()
    assert not (home / "work").is_symlink()
    assert (home / "bin" / "spark-submit").is_file()


@pytest.mark.parametrize(
    ("master", "in_driver", "on_this_machine"),
    [
        ("local", True, True),
        ("local[*]", True, True),
        ("local[2, 4]", True, True),
        ("local-cluster[2,1,1024]", False, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://localhost", False, True),
        ("spark://[::1]:7077", False, True),
        ("spark://localhost:7077,10.0.0.1:7077", False, False),
        ("spark://localhost.example.org:7077", False, False),
        ("k8s://https://127.0.0.1:6443", False, False),
        ("yarn", False, False),
    ],
)
def test_master_determines_where_tasks_run(
    master: str, in_driver: bool, on_this_machine: bool
) -> None:
    assert runs_in_driver(master) is in_driver
    assert runs_on_this_machine(master) is on_this_machine


def test_check_cluster_raises_if_no_address_answers() -> None:
    with pytest.raises(SparkUnavailableError) as raised:
        check_cluster("spark://127.0.0.1:1,127.0.0.1:2", None)
    assert raised.value.reason == "connection refused"
    with pytest.raises(SparkUnavailableError, match="its host name is invalid"):
        check_cluster("spark://master..svc:7077", None)
    for without_address in ("yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,1]"):
        check_cluster(without_address, None)


def test_sockets_of_short_home_are_in_scratch_folder() -> None:
    """A killed process then leaves nothing in other folders."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # a short path
        scratch = create_scratch(Path(home))
        conf, _ = settings_of(Path(home), "local", scratch=scratch)

    assert conf[SOCKETS_ENABLED] == "true"
    assert conf[SOCKET_FOLDER] == str(scratch)


def test_sockets_of_deep_home_are_in_private_folder(tmp_path: Path) -> None:
    """A socket's path is limited to 107 bytes. The folder is deleted with the scratch folder."""
    home = tmp_path / ("deep" * 10)
    scratch = create_scratch(home)
    folder = Path(settings_of(home, "local", scratch=scratch)[0][SOCKET_FOLDER])

    assert len(str(folder)) <= 60
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    delete_scratch(scratch)
    assert not folder.exists()
    assert not scratch.exists()


def test_sockets_are_disabled_without_a_short_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then uses TCP, which is slower."""
    home = tmp_path / ("deep" * 10)
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    conf, _ = settings_of(home, "local", scratch=create_scratch(home))
    assert SOCKETS_ENABLED not in conf


def test_settings_file_is_readable_by_owner_only(tmp_path: Path) -> None:
    command = driver_command(tmp_path, {"spark.driver.memory": "3g"}, "pyspark-shell")
    file = tmp_path / "spark.properties"
    assert str(file) in command
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == "spark.driver.memory=3g\n"


def test_log_above_10_mb_is_renamed(tmp_path: Path) -> None:
    log = rotate_log(tmp_path, "spark.log")
    log.write_bytes(bytes(10_000_001))
    assert rotate_log(tmp_path, "spark.log") == log
    assert [path.name for path in log.parent.iterdir()] == ["spark.old.log"]


def test_scratch_folders_of_ended_processes_are_deleted(tmp_path: Path) -> None:
    """No process has the first id. This process has that of an ended one, as in a container."""
    first = create_scratch(tmp_path)
    for name in ("4194305-x", f"{os.getpid()}-x"):
        first.with_name(name).mkdir()
    second = create_scratch(tmp_path)
    assert set(first.parent.iterdir()) == {first, second}


def test_scratch_folder_of_another_user_is_left() -> None:
    """For example, of a command that root ran in this home and that was killed."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        theirs = Path(home, "spark", "scratch", "4194305-x")
        theirs.mkdir(parents=True)
        theirs.chmod(0)
        for folder in list(theirs.parents)[:3]:
            folder.chmod(0o777)
        os.seteuid(user or 65534)
        try:
            own = create_scratch(Path(home))
        finally:
            os.seteuid(user)
            theirs.chmod(0o700)
        assert set(own.parent.iterdir()) == {theirs, own}
