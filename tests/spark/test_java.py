"""The Java that Spark is started with, and the options of its JVM."""

import shlex

import pytest

from howdah.config.data import SparkOptions
from howdah.errors import ClusterError
from howdah.spark import session
from howdah.spark.shipping import spark_home


def test_a_java_that_cannot_be_started_is_named(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("no program")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for mode in (0o644, 0o755):  # not executable; of another kind of machine
        program.chmod(mode)
        with pytest.raises(ClusterError, match="Java cannot be started") as caught:
            session.require_java(spark_home(SparkOptions()))
        assert caught.value.where == str(program)


def test_a_working_directory_with_a_blank_is_one_option(tmp_path, monkeypatch):
    """Spark divides a JVM's options as a shell does; the rest would be taken for its class."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    settings = session._settings(SparkOptions(master="local[1]"), True, {})
    warehouse = folder / "spark-warehouse"
    assert warehouse.is_dir()  # else Derby writes its log to the terminal
    log = f"-Dderby.stream.error.file={warehouse}/derby.log"
    assert shlex.split(settings["spark.driver.extraJavaOptions"]) == [log]


@pytest.mark.parametrize(
    ("configured", "folder"),
    [("file:{0}/w%20h", "w h"), ("{0}/w", "w"), ("hdfs://nn/w", "spark-warehouse")],
)
def test_the_embedded_metastore_lies_in_the_warehouse_or_here(
    tmp_path, monkeypatch, configured, folder
):
    monkeypatch.chdir(tmp_path)
    for name in ("HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    conf = {"spark.sql.warehouse.dir": configured.format(tmp_path)}
    settings = session._settings(SparkOptions(master="local[1]", conf=conf), True, {})
    assert settings["spark.sql.warehouse.dir"] == conf["spark.sql.warehouse.dir"]
    url = settings["spark.hadoop.javax.jdo.option.ConnectionURL"]
    assert f"databaseName={tmp_path}/{folder}/metastore_db;" in url
    assert [entry.name for entry in tmp_path.iterdir()] == [folder]


def test_a_temporary_directory_with_a_blank_names_the_log_settings_as_a_url(tmp_path, monkeypatch):
    folder = tmp_path / "my tmp"
    folder.mkdir()
    monkeypatch.setattr(session.tempfile, "tempdir", str(folder))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with session._environment(SparkOptions(master="local[1]")):
        (option,) = session.os.environ["SPARK_SUBMIT_OPTS"].split()
    assert "my%20tmp" in option


@pytest.mark.parametrize(
    ("locale", "javas"),
    [({"LC_ALL": "C"}, "C.UTF-8"), ({"LANG": "POSIX"}, "C.UTF-8"), ({"LANG": "de_DE.utf8"}, None)],
)
def test_java_takes_names_of_files_as_utf_8(monkeypatch, locale, javas):
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    with session._environment(SparkOptions(master="local[1]")):
        assert session.os.environ.get("LC_ALL") == javas
    assert session.os.environ.get("LC_ALL") == locale.get("LC_ALL")
