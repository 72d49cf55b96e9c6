"""PostgreSQL as a source: a real server, and what is said of it."""

import subprocess
from urllib.parse import urlsplit

import pytest

from howdah.config import loader as config_module
from howdah.config.data import JdbcOptions
from howdah.errors import ConfigError, DataError, HowdahError, NotFound, PermissionDenied
from howdah.etl.sources import jdbc
from howdah.etl.sources.source import Source
from tests.etl.sources.test_snapshots import rows, scenarios
from tools.local_airflow.postgres import Postgres


@pytest.fixture
def postgres(tmp_path):
    """The URL of a database, password included."""
    server = Postgres(tmp_path / "pg", durable=False).start()
    try:
        server.create_database("news")
        yield server.url("news", driver="postgresql")
    finally:
        server.stop()


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1200)  # several ETLs, and jars that are fetched
def test_rows_come_from_a_real_database(postgres, tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setenv(jdbc.VARIABLE, postgres)
    work = tmp_path / "work"
    work.mkdir()
    results = scenarios("jdbc", work, tiny_model_dir)
    whole = results["whole"]
    assert (rows(whole), whole["unchanged"]) == (40, False), results
    assert results["whole_again"]["source"]["rows"] == whole["source"]["rows"]
    assert (results["ranges"]["hash"], results["ranges"]["unchanged"]) == (whole["hash"], True)
    assert rows(results["watermark"]) == 40
    assert (rows(results["grown"]), rows(results["watermark_grown"])) == (50, 50)
    assert results["watermark"]["source"]["watermark"] == ["id", 40, "40"]
    # what each identity notices of a row that has changed in its place
    assert results["changed"]["source"] != results["grown_again"]["source"]
    assert results["watermark_changed"]["source"] == results["watermark_grown"]["source"]
    assert rows(results["query"]) == 40
    for name in ("writes", "function", "two", "no_table", "no_column", "wrong_password"):
        assert results[name]["error"]["error"] == "DataError", name
    assert results["left"] == 50
    assert "password authentication failed" in results["wrong_password"]["error"]["got"]
    port = urlsplit(postgres).port
    assert whole["source"]["server"] == f"postgresql://127.0.0.1:{port}/news"

    # nothing that was written or said has the password, or a wrong one
    secret = urlsplit(postgres).password
    text = str(results)
    assert secret not in text and "hunter2" not in text
    (work / "url").unlink()
    for text in (secret, "hunter2"):
        argv = ["grep", "-rl", text, str(work)]
        assert subprocess.run(argv, capture_output=True, check=False).stdout == b""


# -------------------------------------------------------------------------------- without Spark
def private(tmp_path, text, mode=0o600):
    path = tmp_path / "url"
    path.write_text(text)
    path.chmod(mode)
    return JdbcOptions(url_file=str(path))


def test_the_password_is_apart_from_what_is_shown(tmp_path):
    text = "postgresql://me:p%40ss%2Fword@db.example:5433/news?sslmode=verify-full\n"
    server = jdbc.server(private(tmp_path, text))
    assert (server.user, server.password) == ("me", "p@ss/word")
    assert server.url == "jdbc:postgresql://db.example:5433/news?sslmode=verify-full"
    assert server.name == "postgresql://db.example:5433/news"
    assert "p@ss" not in repr(server)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("postgresql://me:pw@db.example/x", "db.example:5432/x?sslmode=verify-full"),
        ("postgresql://me:pw@10.0.0.7/x?connectTimeout=3",
         "10.0.0.7:5432/x?connectTimeout=3&sslmode=verify-full"),
        ("postgresql://me:pw@db.example/x?sslmode=disable", "db.example:5432/x?sslmode=disable"),
        ("\ufeffpostgresql://me:pw@127.0.0.1/x\r\n", "127.0.0.1:5432/x"),  # as Windows writes it
        ("postgresql://me:pw@localhost/x", "localhost:5432/x"),
        ("postgresql://me:pw@[::1]/x", "[::1]:5432/x"),
    ],
)  # fmt: skip
def test_another_machine_must_show_its_certificate_unless_the_url_says_otherwise(
    tmp_path, text, url
):
    """pgJDBC's default, `prefer`, gives the password to any process that answers."""
    assert jdbc.server(private(tmp_path, text)).url == f"jdbc:postgresql://{url}"


def test_the_environment_is_asked_where_no_file_is_given(monkeypatch):
    monkeypatch.setenv(jdbc.VARIABLE, "postgresql://me@db/news")
    assert jdbc.server(JdbcOptions()).name == "postgresql://db:5432/news"
    monkeypatch.delenv(jdbc.VARIABLE)
    with pytest.raises(ConfigError, match="no database is given") as caught:
        jdbc.server(JdbcOptions())
    assert "HOWDAH_JDBC_URL" in caught.value.where


def test_a_file_that_others_may_read_is_refused(tmp_path):
    with pytest.raises(PermissionDenied) as caught:
        jdbc.server(private(tmp_path, "postgresql://me:hunter2@db/news", 0o640))
    assert "chmod 600" in caught.value.remedy and "hunter2" not in str(caught.value)
    with pytest.raises(NotFound):
        jdbc.server(JdbcOptions(url_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    "text",
    ["hunter2", "", "mysql://u:hunter2@db/x", "postgresql://u:hunter2@db", "postgresql://db/x",
     "postgresql://u:hunter2@db:port/x", "postgresql://u:hunter2@db/x\nmore",
     "postgresql://u:hunter2@db/x?socketFactory=org.X&socketFactoryArg=hunter2"],
)  # fmt: skip
def test_another_url_is_refused_without_showing_it(tmp_path, text):
    with pytest.raises(HowdahError) as caught:
        jdbc.server(private(tmp_path, text))
    assert isinstance(caught.value, ConfigError) and "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": "csv", "jdbc": {"watermark": "id"}}, "jdbc needs format: jdbc"),
        ({"format": "jdbc", "partitions": {"ds": "1"}}, "partitions needs format: hive"),
    ],
)
def test_keys_that_do_not_fit_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        config_module.from_dict({"data": {"source": "news", **data}})


@pytest.mark.parametrize(
    ("query", "one"),
    [
        ("SELECT * FROM t WHERE body <> 'a; b''c;' -- don't; read\n;", True),
        ('SELECT "a;b" FROM t /* all; of it */', True),
        ("SELECT 1) AS x; DROP TABLE t; --", False),
        ("SELECT E'\\''; DROP TABLE t; --'", False),
        ("SELECT $$'$$; DROP TABLE t; --'", False),
    ],
)
def test_a_semicolon_in_a_text_or_comment_ends_no_query(query, one):
    source = Source(kind="jdbc", name="q.sql", query=query)
    if one:
        assert query.rstrip(";\n") in jdbc._relation(source)
    else:
        with pytest.raises(DataError, match="one SELECT"):
            jdbc._relation(source)


def test_a_driver_on_the_cluster_needs_a_file_that_it_can_read():
    from howdah.etl.launch import submit

    for options in ({}, {"jdbc": {"url_file": "/here/url"}}):
        spark = {"master": "yarn", "deploy_mode": "cluster"}
        data = {"format": "jdbc", "source": "t", "dataset": "hdfs:///d", "spark": spark, **options}
        with pytest.raises(ConfigError) as caught:
            submit._refuse_local_paths(config_module.from_dict({"data": data}))
        assert "data.jdbc.url_file" in caught.value.where
