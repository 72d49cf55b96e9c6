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
    field = manager.connection_form_widgets["extra__howdah__on"].field
    assert field["schema"]["enum"] == ["local", "yarn"]
    assert "YARN" in field["description"]


def test_every_link_and_hook_that_the_provider_names_is_there():
    import importlib

    info = howdah.airflow.provider_info()
    names = [*info["extra-links"], info["connection-types"][0]["hook-class-name"]]
    for name in names:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member)


@pytest.mark.parametrize(
    ("version", "missing"),
    [(None, "not installed"), ("2.11.0", "airflow.sdk"), ("3.0.6", "approval"),
     ("3.2.2", "ResumableJobMixin")],
)  # fmt: skip
def test_the_error_names_what_a_too_old_airflow_lacks(monkeypatch, version, missing):
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
def test_the_fields_of_a_connection(hook):
    made = hook(
        resourcemanager="http://a:8088/, http://b:8088", environment='{"JAVA_HOME": "/java"}',
        on="yarn", command="", keytab=None,
    ).settings  # fmt: skip
    assert made.resourcemanager == ["http://a:8088", "http://b:8088"]
    assert made.environment == {"JAVA_HOME": "/java"}
    assert (made.on, made.command, made.keytab) == ("yarn", None, None)


def test_all_problems_of_a_connection_at_once_and_no_value_of_it():
    from howdah.airflow.runner.settings import from_extra

    extra = {
        "comand": "yarn", "environment": {"A B": "hush"}, "resourcemanager": "a:8088",
        "on": "spark",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        from_extra(extra, "mine")
    text = str(caught.value)
    assert "did you mean command?" in text
    assert "no name of an environment variable" in text
    assert "http://host:port" in text
    assert "'local' or 'yarn'" in text
    assert "hush" not in text


def test_fields_that_need_each_other():
    from howdah.airflow.runner.settings import from_extra

    for extra in ({"keytab": "/a"}, {"ssh_conn_id": "edge"}):
        with pytest.raises(ConfigError, match="mine is not valid"):
            from_extra(extra, "mine")


def test_connections_that_are_not_there_or_of_another_type(connection):
    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.hook import HowdahHook

    assert HowdahHook().settings.on == "local"  # without the default one: this machine
    with pytest.raises(HowdahCommandRefused, match="Airflow Connection does not exist"):
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
    from howdah.airflow.operators import run_name, safe_name

    assert safe_name("howdah_finetune") == "howdah_finetune"
    ids = ["manual__2026-01-01T00:00:00+00:00", "manual__2026-01-01T00-00-00-00-00", "..", "a/b"]
    ids += ["manual_1", "-", "", "a-b", "ä", "x" * 250, "x" * 249]
    ids += [run_name(text) for text in ids]  # an id that reads as another one's directory
    names = [run_name(text) for text in ids]
    assert len(set(names)) == len(ids)
    assert all(name.strip(".") and not set(name) & set("/:+ ") for name in names)
    assert max(map(len, names)) < 255


# ------------------------------------------------------------------------------------ the policy
@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Writes the installation's policy, or takes it away; or another one, its path."""

    def write(text, name=None):
        path = tmp_path / (name or "installation.yaml")
        path.write_text(text or "")
        if name is None:
            monkeypatch.setenv("HOWDAH_AIRFLOW_POLICY", str(path))
            if text is None:
                monkeypatch.delenv("HOWDAH_AIRFLOW_POLICY")
        return str(path)

    return write


def test_the_policy_of_a_connection_its_run_root_and_the_defaults(
    hook, policy, tmp_path, monkeypatch
):
    policy(None)
    made = hook(run_root="hdfs:///user/me/runs").policy
    assert not made.trusted
    assert made.roots == ["hdfs:///", "hdfs:///user/me/runs"]
    assert "default policy" in made.name
    assert hook(run_root="runs").policy.roots[-1] == f"{tmp_path}/runs"
    named = policy("roots: [/srv]\nqueues: [batch]\n")
    made = hook(run_root="/runs").policy
    assert (made.roots, made.queues, made.name) == (["/srv", "/runs"], ["batch"], named)
    path = policy("users: [ada]\ndefaults: {training: {seed: 1}}\n", "own.yaml")
    (tmp_path / "defaults.yaml").write_text("np: 2\nrun: {user: svc}\n")
    monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(tmp_path / "defaults.yaml"))
    made = hook(policy=path).policy
    assert (made.users, made.queues, made.name) == (["ada"], [], path)
    assert made.defaults == {"training": {"seed": 1}, "run": {"user": "svc"}}


def test_a_policy_that_cannot_be_read_lets_nothing_through(hook, policy, tmp_path):
    from howdah.airflow.failures import HowdahCommandFailed, HowdahCommandRefused

    arguments = ["config", "check", "--json"]
    policy("rots: [/srv]\n")
    with pytest.raises(HowdahCommandRefused, match="did you mean roots"):
        hook().run(arguments, config={})
    with pytest.raises(HowdahCommandFailed, match=r"none\.yaml"):
        hook(policy=str(tmp_path / "none.yaml")).run(arguments, config={})


@pytest.mark.parametrize(
    ("installation", "text", "name", "allowed"),
    [
        (None, None, "howdah_default", True),
        (None, None, "howdah_other", False),
        (None, "keys: []", "howdah_other", True),  # an administrator has said what may be asked
        ("conn_ids: [howdah_other]", None, "howdah_other", True),
        ("conn_ids: [howdah_third]", "trusted: true", "howdah_other", False),
        ("conn_ids: ['*']", None, "howdah_other", True),
        ("conn_ids: []", None, "howdah_default", True),  # it was not sent
        ("trusted: true", None, "howdah_other", True),
    ],
)
def test_which_connections_may_be_sent(connection, policy, installation, text, name, allowed):
    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.operators import PreflightOperator

    policy(installation)
    extra = {"policy": policy(text, "own.yaml")} if text is not None else {}
    task = PreflightOperator(task_id="preflight", conn_id=connection(name, extra))
    task.pre_execute({"params": {"conn_id": "another"}})  # the DAG file's own: not sent
    if allowed:
        task.pre_execute({"params": {"conn_id": name}})
        return
    with pytest.raises(HowdahCommandRefused, match="rule `conn_ids`") as caught:
        task.pre_execute({"params": {"conn_id": name}})
    assert "howdah_third" in str(caught.value) or "howdah_default" in str(caught.value)


def test_a_link_planted_below_a_root_is_found_when_the_command_runs(hook, policy, tmp_path):
    """Checked where it is read, each time: what was sound when it was sent may have changed."""
    from howdah.airflow.failures import HowdahCommandRefused

    policy(f"roots: [{tmp_path}/in]\n")
    (tmp_path / "in").mkdir()
    arguments, config = ["config", "check", "--json"], {"data": {"source": f"{tmp_path}/in/rows"}}
    assert hook().run(arguments, config=config)
    (tmp_path / "in" / "rows").symlink_to("/etc")
    with pytest.raises(HowdahCommandRefused, match="rule `roots`"):
        hook().run(arguments, config=config)
