"""Preflight warns where containers of different users run as one user of their node.

The ResourceManager and the NodeManager are stand-ins; the last test asks real ones.
"""

import json

import pytest

from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.conf import HadoopConf
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.yarn.preflight import isolation
from tests.hadoop.test_resourcemanager import client, server

LINUX = "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor"
DEFAULT = "org.apache.hadoop.yarn.server.nodemanager.DefaultContainerExecutor"
XML = {"Content-Type": "text/xml"}


def page(values):
    """Hadoop's /conf: {name: (value, file)}."""
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value><final>false</final>"
        f"<source>{source}</source></property>"
        for name, (value, source) in values.items()
    )
    return 200, XML, f"<configuration>{rows}</configuration>"


def cluster(rm=None, users=(), nm=None):
    """A ResourceManager; it names a NodeManager at the address `nm`."""

    def answer(method, path):
        if path.startswith("/conf"):
            return page(rm or {})
        if "/apps" in path:
            apps = [{"id": f"a{n}", "user": user} for n, user in enumerate(users)]
            return 200, {}, json.dumps({"apps": {"app": apps}})
        if "/nodes" in path:
            nodes = [] if nm is None else [{"nodeHTTPAddress": nm}]
            return 200, {}, json.dumps({"nodes": {"node": nodes}})
        return 200, {}, json.dumps({"clusterInfo": {"haState": "ACTIVE"}})

    return server(answer)


KEY, LIMIT = isolation._EXECUTOR, isolation._LIMIT
ACL = {"yarn.acl.enable": "true"}


def test_the_executor_is_read_from_this_machine_the_resourcemanager_or_a_node():
    with cluster() as (rm, _):
        line = isolation.warning(client(rm, **ACL, **{KEY: DEFAULT}), "ada")
        assert "DefaultContainerExecutor" in line and "delegation tokens" in line
    with cluster(rm={KEY: (DEFAULT, "yarn-site.xml")}) as (rm, _):
        assert "DefaultContainerExecutor" in isolation.warning(client(rm, **ACL), "ada")
    with server(lambda method, path: page({KEY: (DEFAULT, "yarn-default.xml")})) as (nm, _):
        with cluster(rm={KEY: (LINUX, "yarn-site.xml")}, nm=nm) as (rm, _):
            kept_apart = client(rm, **ACL, **{LIMIT: "false"})
            assert isolation.warning(kept_apart, "ada") is None


def test_a_default_of_the_resourcemanager_does_not_count_for_the_nodes():
    default = {KEY: (DEFAULT, "yarn-default.xml")}
    with server(lambda method, path: page({KEY: (LINUX, "yarn-site.xml")})) as (nm, requests):
        with cluster(rm=default, nm=nm) as (rm, _):
            manager = client(rm, **ACL, **{LIMIT: "false"})
            assert isolation.warning(manager, "ada") is None
    assert requests
    with server(lambda method, path: page(default)) as (nm, _), cluster(default, nm=nm) as (rm, _):
        assert "DefaultContainerExecutor" in isolation.warning(client(rm, **ACL), "ada")
    with cluster(default, nm="127.0.0.1:9") as (rm, _):  # a node that cannot be reached
        assert isolation.warning(client(rm, **ACL), "ada") is None


def test_without_kerberos_the_linux_executor_has_one_user_unless_configured_otherwise():
    with cluster(rm={KEY: (LINUX, "yarn-site.xml")}) as (rm, _):
        assert "as nobody" in isolation.warning(client(rm, **ACL), "ada")
        secure = HadoopConf(None, {"hadoop.security.authentication": "kerberos", KEY: LINUX})
        assert isolation.shared_user(ResourceManager(secure, urls=[f"http://{rm}"])) is None


@pytest.mark.parametrize(("users", "warned"), [((), False), (("ada",), False), (("bob",), True)])
def test_the_warning_is_given_only_if_the_cluster_has_other_users(users, warned):
    with cluster(rm={KEY: (DEFAULT, "yarn-site.xml")}, users=users) as (rm, _):
        assert (isolation.warning(client(rm), "ada") is not None) == warned


@pytest.mark.hadoop
def test_the_executor_is_read_from_real_servers(healthy_cluster):
    loaded = hadoop_conf.load(healthy_cluster.env, names=hadoop_conf.YARN_FILES)
    assert "DefaultContainerExecutor" in isolation.shared_user(ResourceManager(loaded))
