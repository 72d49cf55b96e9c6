"""Howdah's provider and Connection in a real Airflow: what they say, and what is refused."""

import pytest

import howdah.airflow
from howdah.errors import ConfigError

pytestmark = pytest.mark.airflow


# ------------------------------------------------------------------------------- the provider
def test_airflow_finds_the_provider_and_its_form():
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    manager.initialize_providers_hooks()
    assert manager.providers["howdah"].data["name"] == "Howdah"
    assert manager.hooks["howdah"].hook_class_name == "howdah.airflow.hook.HowdahHook"
    field = manager.connection_form_widgets["extra__howdah__backend"].field
    assert field["schema"]["enum"] == ["local", "yarn"]
    assert "YARN" in field["description"]


def test_every_link_and_hook_that_the_provider_names_is_there():
    import importlib

    told = howdah.airflow.provider_info()
    names = [*told["extra-links"], told["connection-types"][0]["hook-class-name"]]
    for name in names:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member)


@pytest.mark.parametrize(
    ("version", "missing"),
    [(None, "not installed"), ("2.11.0", "airflow.sdk"), ("3.0.6", "approval"),
     ("3.2.2", "ResumableJobMixin")],
)  # fmt: skip
def test_an_airflow_that_is_too_old_is_told_what_it_lacks(monkeypatch, version, missing):
    monkeypatch.setattr(howdah.airflow, "_airflow_version", lambda: version)
    with pytest.raises(ImportError, match="Airflow") as caught:
        howdah.airflow.require()
    assert missing in str(caught.value)
    assert "3.3" in str(caught.value)


@pytest.mark.parametrize("version", ["3.3.0", "3.3.2", "3.10.0", "4.0.0rc1"])
def test_an_airflow_that_is_new_enough(monkeypatch, version):
    monkeypatch.setattr(howdah.airflow, "_airflow_version", lambda: version)
    howdah.airflow.require()


# --------------------------------------------------------------------------- the Connection
def test_what_a_connection_says(hook):
    made = hook(
        resourcemanager="http://a:8088/, http://b:8088", environment='{"JAVA_HOME": "/java"}',
        backend="yarn", command="", keytab=None,
    ).settings  # fmt: skip
    assert made.resourcemanager == ["http://a:8088", "http://b:8088"]
    assert made.environment == {"JAVA_HOME": "/java"}
    assert (made.backend, made.command, made.keytab) == ("yarn", None, None)


def test_all_problems_of_a_connection_at_once_and_no_value_of_it():
    from howdah.airflow.settings import from_extra

    extra = {
        "bakend": "yarn", "environment": {"A B": "hush"}, "resourcemanager": "a:8088",
        "backend": "spark",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        from_extra(extra, "mine")
    text = str(caught.value)
    assert "did you mean backend?" in text
    assert "no name of an environment variable" in text
    assert "http://host:port" in text
    assert "'local' or 'yarn'" in text
    assert "hush" not in text


def test_fields_that_need_each_other():
    from howdah.airflow.settings import from_extra

    for extra in ({"keytab": "/a"}, {"ssh_conn_id": "edge"}):
        with pytest.raises(ConfigError, match="mine is not what Howdah takes"):
            from_extra(extra, "mine")


def test_connections_that_are_not_there_or_of_another_type(connection):
    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.hook import HowdahHook

    assert HowdahHook().settings.backend == "local"  # without the default one: this machine
    with pytest.raises(HowdahCommandRefused, match="no such Airflow Connection"):
        _ = HowdahHook("nowhere").settings
    with pytest.raises(HowdahCommandRefused, match="of another type"):
        _ = HowdahHook(connection("other", conn_type="http")).settings


def test_the_resourcemanager_of_a_connection(hook, tmp_path, monkeypatch):
    from howdah.airflow.failures import HowdahCommandRefused

    manager = hook(
        resourcemanager=["http://127.0.0.1:1", "http://127.0.0.1:2"],
        keytab="/x.keytab", principal="me@HERE",
    ).resource_manager(patience=0.0)  # fmt: skip
    assert manager.urls == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert manager.conf.kerberos
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    (tmp_path / "hdfs-site.xml").write_text("<configuration/>")
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        "<value>rm.example.org:8088</value></property></configuration>"
    )
    manager = hook(environment={"HADOOP_CONF_DIR": str(tmp_path)}).resource_manager()
    assert manager.urls == ["http://rm.example.org:8088"]
    # An edge node's directory is not looked for here.
    far = {"ssh_conn_id": "edge", "run_root": "hdfs:///runs", "resourcemanager": "http://a:1"}
    hook(environment={"HADOOP_CONF_DIR": "/only/there"}, **far).resource_manager()
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(HowdahCommandRefused, match="field resourcemanager"):
        hook().resource_manager()


def test_names_of_run_directories_are_safe_and_never_the_same():
    from howdah.airflow.operators import safe_name

    assert safe_name("manual_1") == "manual_1"
    ids = ["manual__2026-01-01T00:00:00+00:00", "manual__2026-01-01T00-00-00-00-00", "..", "a/b"]
    names = [safe_name(text) for text in ids]
    assert len(set(names)) == len(ids)
    assert all(name.strip(".") and not set(name) & set("/:+ ") for name in names)
