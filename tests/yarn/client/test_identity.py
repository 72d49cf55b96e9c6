"""Any user can set any tag: an application counts as the submitter's only if its user is too."""

import dataclasses
import getpass
import http.client
import json

import pytest

from howdah import storage
from howdah.cli import jobs as commands
from howdah.config import loader
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.jobs import record
from howdah.jobs.record import Record
from howdah.jobs.submit import Claims
from howdah.yarn import cluster as of_yarn
from howdah.yarn import spec
from howdah.yarn.cluster import YarnCluster, submitter
from howdah.yarn.spec import claim_tag
from tests.hadoop.test_resourcemanager import client, server
from tests.runs.jobs.yarn_applications import wait_for
from tools.minicluster.plan import HOST

APP = "application_1_0001"


def mallorys(path):
    """YARN's answers while an application of mallory's has every tag that is asked for."""
    if "/apps/" in path:
        return 200, {}, json.dumps({"app": {"id": APP, "state": "RUNNING", "user": "mallory"}})
    if "/info" in path:
        return 200, {}, json.dumps({"clusterInfo": {"haState": "ACTIVE"}})
    # It ignores `user`, as a proxy in between may: the reports' users must be compared as well.
    return 200, {}, json.dumps({"apps": {"app": [{"id": APP, "user": "mallory"}]}})


class Ours(YarnCluster):
    """A cluster whose submissions are of a user."""

    def __init__(self, directory, manager, user):
        super().__init__(loader.from_dict({"run": {"directory": directory}}))
        self.manager, self._user = manager, user

    def submitter(self):
        return self._user

    def acquire(self, token):
        ours = Record.of_this_process(
            token=token, on="yarn", run_directory=self.directory, fingerprint="f", user=self._user
        )
        return Claims(self, lambda name: self).acquire(ours)


def test_another_users_application_with_the_same_tag_blocks_no_submission(tmp_path):
    """The ResourceManager is a stand-in."""
    directory = str(tmp_path / "run")
    with server(lambda method, path: mallorys(path)) as (address, seen):
        mine = Ours(directory, client(address), "ada")
        claim = mine.acquire("t1")
        assert claim.token == "t1"
        assert all("user=ada" in path for _, path, _ in seen if "applicationTags" in path)
        # A submitter that was killed: an application with its token's tag must be its user's too.
        dataclasses.replace(claim, token="t0", pid=2**22 + 1).write()
        assert mine.acquire("t2").token == "t2"


def test_status_of_a_run_directory_never_shows_another_users_application(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    held = loader.from_dict({"run": {"directory": str(tmp_path / "run")}})
    with server(lambda method, path: mallorys(path)) as (address, _):
        with pytest.raises(storage.NotFound, match="no job was submitted"):
            monkeypatch.setattr(YarnCluster, "manager", client(address))
            commands.find(None, held)


def test_the_claim_keeps_yarns_name_for_the_submitter(tmp_path):
    directory = str(tmp_path / "run")
    report = {"id": APP, "state": "RUNNING", "user": "ada_of_research"}

    def answer(method, path):
        if f"/apps/{APP}" in path:
            return 200, {}, json.dumps({"app": report})
        return 200, {}, "{}"

    with server(answer) as (address, _):
        mine = Ours(directory, client(address), "ada")
        mine._complete(mine.acquire("t1"), APP)
        assert record.read(directory).user == "ada_of_research"


def test_without_kerberos_and_for_a_proxied_user_the_submitter_is_the_name_that_is_sent(
    monkeypatch,
):
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    assert submitter(loader.from_dict({}), "runs/a") == "ada"
    assert submitter(loader.from_dict({"run": {"user": "bob"}}), "runs/a") == "bob"


def test_with_kerberos_the_submitter_is_the_owner_that_the_namenode_reports(tmp_path, monkeypatch):
    """Its rules may map ada@REALM to another name; other storages have other names."""
    name = "hadoop.security.authentication"
    text = f"<property><name>{name}</name><value>kerberos</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{text}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("HADOOP_PROXY_USER", raising=False)
    monkeypatch.setattr(of_yarn, "owner_here", lambda directory: "ada_of_research")

    def owner_of(directory, **run):
        held = {"run": {"directory": directory, **run},
                "yarn": {"keytab": "/k", "principal": "ada/node@REALM"}}  # fmt: skip
        return submitter(loader.from_dict(held), directory)

    assert owner_of("hdfs://nn/runs/a") == "ada_of_research"
    assert owner_of(f"file://{tmp_path}/run") == "ada"
    assert owner_of("hdfs://nn/runs/a", user="bob") == "bob"


# ---------------------------------------------------------------------------- on a real YARN
def submitted_by(cluster, user, tags):
    """A running application of a user of a cluster without Kerberos, with these tags; its id."""

    def rest(method, path, body=None):
        connection = http.client.HTTPConnection(HOST, cluster.plan.ports["resourcemanager-http"])
        try:
            connection.request(
                method, f"/ws/v1/cluster/{path}?user.name={user}",
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
            )  # fmt: skip
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, text
            return json.loads(text) if text else {}
        finally:
            connection.close()

    application = rest("POST", "apps/new-application")["application-id"]
    rest("POST", "apps", {
        "application-id": application, "application-name": "trap", "application-type": "SHELL",
        "queue": "default", "max-app-attempts": 1, "resource": {"memory": 256, "vCores": 1},
        "application-tags": {"tag": list(tags)},
        "am-container-spec": {"commands": {"command": "sleep 300"}},
    })  # fmt: skip
    return application


@pytest.mark.hadoop
def test_mallorys_tags_do_not_stop_adas_submission(healthy_cluster, tmp_path):
    manager = ResourceManager(hadoop_conf.load(healthy_cluster.env, names=hadoop_conf.YARN_FILES))
    directory = str(tmp_path / "run")
    tag = spec.tag(directory)
    try:
        trap = submitted_by(healthy_cluster, "mallory", [tag, claim_tag("t0"), spec.TAG])
        wait_for(lambda: manager.applications(applicationTags=tag), lambda: "no tag")
        assert [a["user"] for a in manager.applications(applicationTags=tag)] == ["mallory"]
        claim = Ours(directory, manager, "ada").acquire("t1")
        assert claim.token == "t1"
        storage.remove(record.path_of(directory))
        # the user of that application attaches to it
        assert Ours(directory, manager, "mallory").acquire("t2").application == trap
        application = submitted_by(healthy_cluster, getpass.getuser(), [tag])
        assert Ours(directory, manager, getpass.getuser()).acquire("t3").application == application
    finally:
        healthy_cluster.end_applications()
