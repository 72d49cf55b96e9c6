"""The ResourceManager's REST client against servers that answer as YARN's do."""

import contextlib
import http.server
import json
import socket
import threading

import pytest

from howdah.doctor import yarn as doctor_yarn
from howdah.errors import ClusterError, ConfigError, NotAuthenticated, NotFound, PermissionDenied
from howdah.hadoop import conf, queue_access, resourcemanager
from howdah.hadoop.conf import HadoopConf
from howdah.hadoop.resourcemanager import ResourceManager, web_urls
from tests.support.waiting import wait_until


@contextlib.contextmanager
def server(answer):
    """A ResourceManager on loopback; `answer(method, path) -> (status, headers, text)`."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            seen.append((self.command, self.path, json.loads(body) if body else None))
            status, headers, text = answer(self.command, self.path)
            self.send_response_only(status)  # no Date of its own
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = _do

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{made.server_port}", seen
        finally:
            made.shutdown()
            thread.join()


def client(*addresses, patience=0.0, **values):
    if len(addresses) == 1:
        values["yarn.resourcemanager.webapp.address"] = addresses[0]
    else:
        values["yarn.resourcemanager.ha.enabled"] = "true"
        ids = [f"rm{n}" for n in range(len(addresses))]
        values["yarn.resourcemanager.ha.rm-ids"] = ", ".join(ids)
        for name, address in zip(ids, addresses, strict=True):
            values[f"yarn.resourcemanager.webapp.address.{name}"] = address
    return ResourceManager(HadoopConf("/conf", values), patience=patience)


def info(method, path):
    return 200, {}, json.dumps({"clusterInfo": {"state": "STARTED"}})


def test_addresses_come_from_yarn_site():
    def urls(**values):
        return web_urls(HadoopConf("/c", {f"yarn.{k}": v for k, v in values.items()}))

    rm = "resourcemanager"
    assert urls(**{f"{rm}.hostname": "rm"}) == ["http://rm:8088"]
    assert urls(**{f"{rm}.webapp.address": "rm:1"}) == ["http://rm:1"]
    assert urls(**{"http.policy": "HTTPS_ONLY", f"{rm}.hostname": "rm"}) == ["https://rm:8090"]
    ids = {f"{rm}.ha.enabled": "true", f"{rm}.ha.rm-ids": "a, b,"}  # as Hadoop reads lists
    assert urls(**ids, **{f"{rm}.hostname.{n}": n for n in "ab"}) == [
        "http://a:8088",
        "http://b:8088",
    ]
    pair = {f"{rm}.ha.enabled": "true", f"{rm}.ha.rm-ids": "a,b"}
    assert urls(**pair, **{f"{rm}.hostname.a": "x", f"{rm}.webapp.address.b": "y:2"}) == [
        "http://x:8088",
        "http://y:2",
    ]
    for bad in ({}, {f"{rm}.webapp.address": "0.0.0.0:8088"}, {**pair, f"{rm}.hostname.a": "x"}):
        with pytest.raises(ConfigError, match="address is not known"):
            urls(**bad)


def test_yarn_site_is_read_only_where_it_is_asked_for(tmp_path):
    text = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(text.format("fs.defaultFS", "hdfs://nn"))
    (tmp_path / "yarn-site.xml").write_text(text.format("yarn.resourcemanager.hostname", "rm"))
    env = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert conf.load(env).get("yarn.resourcemanager.hostname") is None
    both = conf.load(env, names=conf.YARN_FILES)
    assert (both.get("yarn.resourcemanager.hostname"), both.default_fs) == ("rm", "hdfs://nn")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "core-site.xml").write_bytes(conf.as_xml(both))
    assert conf.load({"HADOOP_CONF_DIR": str(tmp_path / "all")}).values == both.values


@pytest.mark.parametrize(
    "standby",
    [
        (307, {"Location": "http://elsewhere/"}, "This is standby RM."),
        (200, {"Refresh": "3; url=http://elsewhere/", "Content-Type": "text/plain"}, "standby"),
        (200, {"Content-Type": "text/html"}, "<html>"),
        (503, {}, ""),
    ],
)
def test_the_active_resourcemanager_is_found_and_remembered(standby):
    with server(lambda *_: standby) as (first, seen), server(info) as (second, _):
        manager = client(first, second)
        assert manager.info()["state"] == "STARTED"
        assert manager.info()["state"] == "STARTED"
    assert len(seen) == 1


def test_one_that_is_stopped_keeps_nobody_from_the_other(monkeypatch):
    """Its port takes connections, and it never answers."""
    monkeypatch.setattr(resourcemanager, "_PAIR_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped, server(info) as (second, _):
        manager = client(f"127.0.0.1:{stopped.getsockname()[1]}", second)
        assert manager.info()["state"] == "STARTED"
        assert manager.urls[0] == f"http://{second}"


def test_a_slow_one_of_two_gets_its_time(monkeypatch):
    """The limit grows with each attempt, also where patience is over."""
    monkeypatch.setattr(resourcemanager, "_PAIR_SECONDS", 0.05)
    paths = []

    def slow(method, path):
        paths.append(path)
        wait_until(lambda: len(paths) >= 3)
        return info(method, path)

    with server(slow) as (first, _), server(lambda *_: (503, {}, "")) as (second, _):
        assert client(first, second).info()["state"] == "STARTED"
    assert len(paths) == 3


def test_requests_are_retried_during_a_restart():
    answers = iter([(503, {}, ""), (503, {}, ""), info("", "")])
    with server(lambda *_: next(answers)) as (address, seen):
        assert client(address, patience=30).info()["state"] == "STARTED"
    assert len(seen) == 3


@pytest.mark.parametrize("path", ["apps/application_1_0001", "apps"])
def test_an_empty_answer_counts_only_after_recovery(path):
    states = ["INITIALIZING", "INITIALIZING", "ACTIVE"]  # as it says each time, the last for good
    app = {"id": "application_1_0001"}

    def answer(method, request):
        if "/info" in request:
            state = states.pop(0) if len(states) > 1 else states[0]
            return 200, {}, json.dumps({"clusterInfo": {"haState": state}})
        one = "application_" in request
        if len(states) > 1:  # its web server answers before it has read what it knew
            return (404, {}, "{}") if one else (200, {}, '{"apps": null}')
        return 200, {}, json.dumps({"app": app} if one else {"apps": {"app": [app]}})

    def ask(manager):
        if path == "apps":
            return manager.applications(applicationTags="x")
        return [manager.application(app["id"])]

    with server(answer) as (address, _):
        with pytest.raises(ClusterError, match="is starting"):
            ask(client(address))
        assert ask(client(address, patience=30.0)) == [app]


def test_without_an_answer_the_error_names_each_cause():
    with server(lambda *_: (503, {}, "")) as (first, _):
        manager = client(first, "127.0.0.1:1")
        with pytest.raises(ClusterError, match="does not answer") as caught:
            manager.info()
    assert "HTTP 503" in caught.value.got
    assert "refused" in caught.value.got


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, NotAuthenticated), (403, PermissionDenied), (404, NotFound), (400, ClusterError)],
)
def test_a_refusal_shows_yarns_message(status, kind):
    body = json.dumps({"RemoteException": {"exception": "X", "message": "its own words"}})
    with server(lambda *_: (status, {}, body)) as (address, _), pytest.raises(kind) as caught:
        client(address).application("application_1_1")
    assert "its own words" in caught.value.got


def test_a_gateway_that_asks_for_a_password_is_named():
    basic = {"WWW-Authenticate": 'Basic realm="knox"'}
    with server(lambda *_: (401, basic, "")) as (address, _):
        with pytest.raises(NotAuthenticated, match="Knox") as caught:
            client(address).info()
    assert "own web addresses" in caught.value.expected


def test_a_proxy_may_serve_it_below_a_path():
    with server(info) as (address, seen):
        urls = [f"http://{address}/yarn"]
        manager = ResourceManager(HadoopConf("/c", {}), urls=urls, patience=0.0)
        assert manager.info()["state"] == "STARTED"
        assert manager.settings_page("x") is None  # that answer is no XML
    assert [path.partition("?")[0] for _, path, _ in seen][:2] == [
        "/yarn/ws/v1/cluster/info", "/yarn/conf",
    ]  # fmt: skip


def test_an_error_inside_yarn_is_not_retried():
    """Hadoop 3.5 says 503 for what it fails to write as JSON."""
    body = json.dumps({"RemoteException": {"exception": "X", "message": "no writer"}})
    with server(lambda *_: (503, {}, body)) as (address, seen):
        with pytest.raises(ClusterError, match="refused"):
            client(address, patience=60).info()
    assert len(seen) == 1


def test_proxy_variables_are_ignored(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with server(info) as (address, _):
        assert client(address).info()["state"] == "STARTED"


def test_requests_name_the_user(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    monkeypatch.delenv("HADOOP_PROXY_USER", raising=False)
    with server(info) as (address, seen):
        client(address).info()
        values = {"yarn.resourcemanager.webapp.address": address}
        ResourceManager(HadoopConf("/c", values), user="bob").info()
    assert [path.partition("?")[2] for _, path, _ in seen] == ["user.name=alice", "user.name=bob"]


def test_killing_an_ended_application_is_no_error():
    def answer(method, path):
        if method == "PUT":
            return 400, {}, json.dumps({"RemoteException": {"message": "already finished"}})
        return 200, {}, json.dumps({"app": {"state": "FINISHED"}})

    with server(answer) as (address, seen):
        assert client(address).kill("application_1_1", "why") == "FINISHED"
    assert seen[0][2] == {"state": "KILLED", "diagnostics": "why"}


def test_queues_nodes_and_access_are_parsed():
    leaf = {"queueName": "a", "queuePath": "root.p.a"}
    parent = {"queueName": "p", "queues": {"queue": [leaf]}}
    tree = {"scheduler": {"schedulerInfo": {"queueName": "root", "queues": {"queue": [parent]}}}}
    access = "<rmQueueAclInfo><allowed>{}</allowed><diagnostics>{}</diagnostics></rmQueueAclInfo>"

    def answer(method, path):
        path, _, query = path.partition("?")
        if path.endswith("/scheduler"):
            return 200, {}, json.dumps(tree)
        if path.endswith("/nodes"):
            return 200, {}, '{"nodes": null}'
        if path.endswith("/access"):
            body = (
                access.format("false", "no right")
                if "user=eve" in query
                else access.format("true", "")
            )
            return 200, {"Content-Type": "application/xml"}, body
        return 200, {}, '{"nodeLabelInfo": {"name": "fast"}}'

    with server(answer) as (address, _):
        manager = client(address)
        assert [q["queueName"] for q in manager.queues()] == ["root", "p", "a"]
        assert manager.nodes() == []
        assert manager.labels() == ["fast"]
        assert manager.refused_submission("a", "alice") is None
        assert manager.refused_submission("a", "eve") == "no right"


def lists(*texts, kind="SUBMIT_APP"):
    """Queues one below the other, each with a list of who may submit; None: not reported."""
    tree = {}
    for depth, text in reversed(list(enumerate(texts))):
        acls = [] if text is None else [{"accessType": kind, "accessControlList": text}]
        acls.append({"accessType": "APPLICATION_MAX_PRIORITY", "accessControlList": "*"})
        listed = {} if text is None else {"queueAcls": {"queueAcl": acls}}
        below = {"queues": {"queue": [tree]}} if tree else {}
        name = "a" if depth == len(texts) - 1 else f"above-{depth}"
        tree = {"queueName": name} | listed | below
    return tree


@pytest.mark.parametrize(
    ("texts", "allowed"),
    [
        ((" ", " "), False),
        ((" ", "bob"), False),
        ((" ", "bob,eve "), True),
        (("eve", "bob"), True),  # a right holds below as well
        (("*", " "), True),
        ((" ", "bob staff"), True),  # YARN alone knows who is of the staff
        ((None, "bob"), True),
        ((None, None), True),
    ],
)
def test_without_admin_rights_the_access_lists_decide(texts, allowed):
    enforced = True

    def answer(method, path):
        if path.startswith("/conf"):
            setting = f"<property><name>yarn.acl.enable</name><value>{enforced}</value></property>"
            page = f"<configuration>{setting}</configuration>"
            return 200, {"Content-Type": "text/xml;charset=utf-8"}, page
        if "/access" in path:
            return 403, {}, json.dumps({"RemoteException": {"message": "no administrator"}})
        return 200, {}, json.dumps({"scheduler": {"schedulerInfo": lists(*texts)}})

    with server(answer) as (address, seen):
        why = client(address).refused_submission("a", "eve")
        assert (why is None) == allowed, why
        assert allowed or why == "no access list of above-0 > a has eve"
        enforced = False  # by default YARN does not look at them
        assert client(address).refused_submission("a", "eve") is None
    assert seen[0][1].startswith("/conf?name=yarn.acl.enable")


def test_access_lists_count_only_where_acls_are_known_to_be_enabled():
    def answer(method, path):
        if path.startswith("/conf") or "/access" in path:
            return 403, {}, json.dumps({"RemoteException": {"message": "no administrator"}})
        return 200, {}, json.dumps({"scheduler": {"schedulerInfo": lists(" ", " ")}})

    with server(answer) as (address, _):
        assert client(address).refused_submission("a", "eve") is None


def test_who_administers_a_queue_may_submit_to_it():
    tree = lists(" ", "eve", kind="ADMINISTER_QUEUE")
    assert queue_access.refused(tree, "a", "eve") is None
    assert "has bob" in queue_access.refused(tree, "a", "bob")
    assert queue_access.refused(tree, "b", "bob") is None  # no such queue: said elsewhere


@pytest.mark.parametrize("times", [1, 2])  # YARN sends the header twice
def test_its_clock_is_in_seconds(times):
    date = {"Date": ", ".join(["Sat, 21 Nov 2026 16:30:00 GMT"] * times)}
    with server(lambda *_: (200, date, info("", "")[2])) as (address, _):
        assert client(address).clock() == 1795278600.0


def test_the_doctor_checks_it(tmp_path):
    def yarn_site(address):
        name = "yarn.resourcemanager.webapp.address"
        (tmp_path / "yarn-site.xml").write_text(
            f"<configuration><property><name>{name}</name><value>{address}</value></property>"
            "</configuration>"
        )
        return doctor_yarn.check_resourcemanager({"HADOOP_CONF_DIR": str(tmp_path)})

    def nodes(method, path):
        if "/nodes" in path:
            return 200, {}, '{"nodes": {"node": [{}, {}]}}'
        return info(method, path)

    assert doctor_yarn.check_resourcemanager({}).status == "skip"
    with server(nodes) as (address, _):
        check = yarn_site(address)
        assert (check.status, "2 nodes" in check.found) == ("ok", True)
    with server(info) as (address, _):  # no nodes in that answer
        assert yarn_site(address).status == "warn"
    check = yarn_site("127.0.0.1:1")
    assert (check.status, "refused" in check.found) == ("fail", True)


def test_the_doctor_looks_for_what_a_submission_needs(tmp_path):
    env = {"HADOOP_CONF_DIR": str(tmp_path), "PATH": "/none"}
    assert doctor_yarn.check_submission({}).status == "skip"
    assert doctor_yarn.check_submission(env).status == "warn"
    program = tmp_path / "bin" / "yarn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert doctor_yarn.check_submission({**env, "HADOOP_HOME": str(tmp_path)}).status == "ok"
