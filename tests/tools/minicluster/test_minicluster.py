"""The mini cluster without its daemons: jars, Java, ports, files, state, launchers, arguments."""

import dataclasses
import hashlib
import os
import re
import socket
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from howdah.errors import ClusterError, NotFound, UsageError
from howdah.hadoop import conf
from howdah.hadoop.resourcemanager import web_urls
from tools.minicluster import (
    MiniCluster,
    classdata,
    daemons,
    host,
    launchers,
    settings,
)
from tools.minicluster import __main__ as command
from tools.minicluster.daemons import Record
from tools.minicluster.maven import jars
from tools.minicluster.plan import Plan
from tools.minicluster.state import State


def quiet(line: str) -> None:
    pass


def program(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def plan(tmp_path) -> Plan:
    names = daemons.ports_of(daemons.catalogue(3, 2, secure=True).values())
    return Plan(
        directory=str(tmp_path / "cluster"),
        jars=str(tmp_path / "jars"),
        java_home="/usr/lib/jvm/java",
        user="ann",
        ports={name: 20000 + n for n, name in enumerate(names)},
    )


# ----------------------------------------------------------------------------------------- jars
@pytest.fixture
def cache(tmp_path, monkeypatch):
    place = tmp_path / "cache"
    monkeypatch.setenv("HOWDAH_CACHE", str(place))
    return place


def fake_maven(tmp_path, monkeypatch, text: str) -> None:
    """An mvn that does `text`, with $out being the output directory of its arguments."""
    find_out = 'for word; do case "$word" in -DoutputDirectory=*) out=${word#*=};; esac; done\n'
    program(tmp_path / "bin" / "mvn", find_out + text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_without_maven_the_remedy_names_its_package(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError) as caught:
        jars.fetch(quiet)
    assert "apt-get install maven" in caught.value.remedy
    assert list(cache.iterdir()) == []


def test_the_error_has_maven_s_output_and_nothing_is_kept(tmp_path, monkeypatch, cache):
    fake_maven(tmp_path, monkeypatch, "echo '[ERROR] Could not find artifact x:y'; exit 1")
    with pytest.raises(ClusterError) as caught:
        jars.fetch(quiet)
    assert "Could not find artifact x:y" in caught.value.got
    assert list(cache.iterdir()) == []


def test_jars_that_are_not_the_listed_ones_are_refused_and_not_kept(tmp_path, monkeypatch, cache):
    fake_maven(tmp_path, monkeypatch, 'mkdir "$out"; echo no > "$out/hadoop-common-3.5.0.jar"')
    with pytest.raises(ClusterError) as caught:
        jars.fetch(quiet)
    assert "none was kept" in caught.value.what
    assert list(cache.iterdir()) == []


def test_a_fetch_is_whole_and_done_once(tmp_path, monkeypatch, cache):
    pages = tmp_path / jars.of_hadoop().pages
    with zipfile.ZipFile(pages, "w") as archive:
        archive.writestr("webapps/hdfs/index.html", "page")
        archive.writestr("org/Other.class", "class")
        archive.writestr("webapps/../../escaped", "no")
    (tmp_path / "a.jar").write_bytes(b"a")
    listed = tmp_path / "listed"
    listed.write_text(
        "".join(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in (pages, tmp_path / "a.jar")
        )
    )
    jar_set = dataclasses.replace(jars.of_hadoop(), hashes=listed)
    calls = tmp_path / "calls"
    copy = f'echo call >> {calls}; mkdir "$out"; cp {pages} {tmp_path}/a.jar "$out"'
    fake_maven(tmp_path, monkeypatch, copy)
    home = jars.fetch(quiet, jar_set)
    assert jars.fetch(quiet, jar_set) == home
    assert calls.read_text() == "call\n"
    assert [path.name for path in cache.iterdir()] == [home.name]
    files = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    assert files == {"lib/a.jar", "webapps/hdfs/index.html", "pom.xml"}


def test_verify_names_what_is_missing_unlisted_and_different(tmp_path):
    (tmp_path / "different.jar").write_bytes(b"x")
    (tmp_path / "unlisted.jar").write_bytes(b"x")
    with pytest.raises(ClusterError) as caught:
        jars.verify(tmp_path, {"missing.jar": "00", "different.jar": "00"}, tmp_path / "list")
    for words in ("missing.jar is missing", "unlisted.jar is not listed", "different.jar has SHA"):
        assert words in caught.value.got


@pytest.mark.parametrize("version", jars.VERSIONS)
def test_the_committed_lists_are_of_the_pom(version):
    jar_set = jars.of_hadoop(version)
    listed = jars.parse_hashes(jar_set.hashes.read_text())
    assert all(len(digest) == 64 for digest in listed.values()) and jar_set.pages in listed
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    pom = ElementTree.parse(jars.POM).getroot()
    assert pom.find("m:properties/m:hadoop.version", namespace).text == jars.HADOOP_VERSION
    for item in pom.iterfind("m:dependencies/m:dependency", namespace):
        name, of = (item.find(f"m:{key}", namespace).text for key in ("artifactId", "version"))
        assert of != "${hadoop.version}" or f"{name}-{version}.jar" in listed


def test_a_hadoop_without_a_list_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        MiniCluster(tmp_path / "cluster", say=quiet).start(hadoop="2.10.2")
    assert "3.3.6" in caught.value.expected and not os.path.exists(tmp_path / "cluster")


# ------------------------------------------------------------------------------- Java and ports
def test_a_java_that_first_names_its_options_is_a_java(tmp_path, monkeypatch):
    """`env` of a cluster with Kerberos sets JAVA_TOOL_OPTIONS, which Java prints."""
    lines = ("Picked up JAVA_TOOL_OPTIONS: -Dx=1", 'openjdk version "17.0.15" 2025-04-15')
    text = "\n".join(f"echo '{line}' >&2" for line in lines)
    program(tmp_path / "bin" / "java", text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert host.find_java() == str(tmp_path)


def test_a_java_that_is_too_old_is_refused(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "java", """echo 'openjdk version "11.0.2" 2019' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClusterError) as caught:
        host.find_java()
    assert caught.value.got == 'openjdk version "11.0.2" 2019'
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ClusterError, match="needs Java"):
        host.find_java()


def test_reserved_ports_are_ours_alone_and_a_daemon_can_listen_there():
    with host.reserve_ports(["a", "b"], {}, {}) as first:
        with pytest.raises(ClusterError, match="is taken"):
            with host.reserve_ports(["c"], {"c": first["a"]}, {}):
                pass
        with host.reserve_ports(["c"], {}, {"c": first["a"]}) as second:
            assert second["c"] not in first.values()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", first["b"]))
            listener.listen()
    with host.reserve_ports(["a"], {}, {"a": first["a"]}) as again:
        assert again == {"a": first["a"]}


def test_a_port_whose_connections_have_only_just_ended_is_had_again():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            with pytest.raises(ClusterError, match="is taken"):
                with host.reserve_ports(["a"], {"a": port}, {}):
                    pass
            accepted.close()  # this side first: it is the one that waits
            assert client.recv(1) == b""
    with pytest.raises(OSError):
        with socket.socket() as strict:
            strict.bind(("127.0.0.1", port))
    with host.reserve_ports(["a"], {"a": port}, {}) as chosen:
        assert chosen == {"a": port}


# ------------------------------------------------------------------------ configuration, launchers
def read_site(path) -> dict[str, str]:
    root = ElementTree.parse(path).getroot()
    return {item.find("name").text: item.find("value").text for item in root.iter("property")}


def test_every_daemon_has_its_own_ports_and_folders(plan):
    names = list(daemons.catalogue_of(plan))
    settings.write(plan, names)
    client = read_site(plan.conf_dir / "core-site.xml")
    assert client["fs.defaultFS"] == f"hdfs://localhost:{plan.ports['namenode']}"
    assert client["hadoop.proxyuser.ann.hosts"] == "*"
    sites = [read_site(settings.daemon_conf(plan, name) / "hdfs-site.xml") for name in names]
    data = [site["dfs.datanode.data.dir"] for site in sites if "dfs.datanode.data.dir" in site]
    assert len(set(data)) == len(data) == 3


def test_settings_of_one_start_and_of_one_daemon_go_last(tmp_path, plan):
    values = {
        **plan.__dict__,
        "extra": {"hdfs-site": {"dfs.replication": "1", "odd": "a<b>&\"'é"}},
        "own": {"namenode": {"hdfs-site": {"dfs.replication": "3"}}},
    }
    changed = Plan(**values)
    settings.write(changed, ["namenode", "datanode-0"])
    client = read_site(changed.conf_dir / "hdfs-site.xml")
    assert (client["dfs.replication"], client["odd"]) == ("1", "a<b>&\"'é")
    name_node = read_site(settings.daemon_conf(changed, "namenode") / "hdfs-site.xml")
    assert name_node["dfs.replication"] == "3"


def test_two_of_each_master_and_tls_change_the_settings(tmp_path, plan):
    names = daemons.ports_of(daemons.catalogue(3, 2, secure=False, ha=True).values())
    ports = {name: 20000 + n for n, name in enumerate(names)}
    pair = Plan(**{**plan.__dict__, "ports": ports, "ha": True, "tls": True})
    password = pair.path("tls", "password")
    password.parent.mkdir(parents=True)
    password.write_text("secret")
    settings.write(pair, daemons.catalogue_of(pair))
    client = {
        **read_site(pair.conf_dir / "hdfs-site.xml"),
        **read_site(pair.conf_dir / "yarn-site.xml"),
    }
    assert read_site(pair.conf_dir / "core-site.xml")["fs.defaultFS"] == "hdfs://howdah"
    hadoop = conf.load({"HADOOP_CONF_DIR": str(pair.conf_dir)}, names=conf.YARN_FILES)
    members = ("namenode", "namenode-2")
    assert hadoop.rpc_addresses("howdah") == [pair.address(name) for name in members]
    pages = [f"https://{pair.address(f'{name}-http')}" for name in members]
    assert hadoop.namenode_pages("howdah") == hadoop.web_urls("howdah", secure=True) == pages
    assert web_urls(hadoop) == [
        f"https://{pair.address(f'{name}-http')}"
        for name in ("resourcemanager", "resourcemanager-2")
    ]
    # nothing is left that only one of them would have, or that would speak HTTP
    left = {key for key, value in client.items() if value in map(pair.address, names)}
    assert not [key for key in left if "http-address" in key or "webapp.address" in key]
    one_of_two = re.compile(r".*(namenode|resourcemanager)[.](?!zk-)\S*address")  # one ZooKeeper
    assert not [key for key in left if one_of_two.fullmatch(key)]
    sites = {
        n: read_site(settings.daemon_conf(pair, n) / "hdfs-site.xml")
        for n in ("zkfc-2", members[1])
    }
    assert {site["dfs.ha.namenode.id"] for site in sites.values()} == {"nn2"}


def test_launchers_tell_class_path_and_refuse_unknown_commands(plan):
    launchers.write(plan)
    place = plan.hadoop_home / "bin"
    assert {path.name for path in place.iterdir()} == {"hadoop", "hdfs", "yarn", "mapred"}
    env = {"PATH": os.environ["PATH"], "HADOOP_CLASSPATH": "/more/*"}
    done = subprocess.run([place / "yarn", "classpath"], env=env, capture_output=True, text=True)
    assert done.stdout == f"{plan.conf_dir}:{plan.jars}:{plan.jars}/lib/*:/more/*\n"
    done = subprocess.run([place / "hdfs", "namenode"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "dfsadmin" in done.stderr


# ------------------------------------------------------------------------------- class archive
FAKE_DUMP = """for word; do case "$word" in
  -XX:SharedClassListFile=*) list=${word#*=};; -XX:SharedArchiveFile=*) out=${word#*=};;
esac; done
"""


def test_a_class_archive_is_made_once_of_whole_lines_and_the_loader_s_own_classes(tmp_path, plan):
    plan = Plan(**{**plan.__dict__, "java_home": str(tmp_path)})
    program(tmp_path / "bin" / "java", FAKE_DUMP + 'cp "$list" "$out"')
    os.makedirs(plan.jars)
    assert classdata.flags(plan) == []  # a client lists nothing
    (listing,) = classdata.flags(plan, "namenode")
    with open(listing.partition("=")[2], "w") as file:
        file.write("# comment\na/A\nb/B id: 5 super: 1 source: x\n@lambda-proxy a/A run\nc/half")
    classdata.make(plan, quiet)
    archive = classdata.archive(plan)
    assert archive.read_text() == "a/A\n@lambda-proxy a/A run\n"
    assert classdata.flags(plan, "namenode") == [f"-XX:SharedArchiveFile={archive}"]
    program(tmp_path / "bin" / "java", "exit 1")
    classdata.make(plan, pytest.fail)  # it is there: no second time


def test_a_class_archive_that_cannot_be_made_is_reported_and_is_no_error(tmp_path, plan):
    plan = Plan(**{**plan.__dict__, "java_home": str(tmp_path)})
    program(tmp_path / "bin" / "java", FAKE_DUMP + 'echo half > "$out"; echo "no room" >&2; exit 1')
    os.makedirs(plan.jars)
    lines: list[str] = []
    classdata.make(plan, lines.append)
    assert "no room" in lines[-1]
    assert classdata.flags(plan) == [] and os.listdir(plan.jars) == []


# ------------------------------------------------------------------------- state and directories
def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="other contents than a mini cluster"):
        MiniCluster(tmp_path, say=quiet).start()
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(NotFound, match="no mini cluster"):
        MiniCluster(tmp_path, say=quiet).stop(remove=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_running_cluster_of_other_settings_is_refused_with_both(plan, monkeypatch):
    os.makedirs(plan.directory)
    State(plan.directory).save(plan, {})
    monkeypatch.setattr(MiniCluster, "is_running", lambda self: True)
    settings = {
        "hadoop": plan.hadoop, "secure": False, "ha": True, "tls": False, "node_memory_mb": 1024,
        "node_gpus": 0,
    }  # fmt: skip
    with pytest.raises(UsageError, match="other settings") as caught:
        command.start(
            plan.directory, with_metastore=False, ports=["namenode=8020"], say=quiet, **settings
        )
    assert caught.value.expected == "high availability True, node memory 1024, namenode 8020"
    port = plan.ports["namenode"]
    assert caught.value.got == f"high availability False, node memory 6144, namenode {port}"


@pytest.mark.parametrize("name", ["my files", "50%", "a,b", "a#b", "[a]", "a:b", "$HOME"])
def test_a_path_that_hadoop_s_settings_cannot_have_is_refused(tmp_path, name):
    """A NameNode below "my files" formats another directory, and the disk would be blamed."""
    with pytest.raises(UsageError, match="a character in its path"):
        MiniCluster(tmp_path / name, say=quiet).start()
    assert os.listdir(tmp_path) == []


def test_what_is_no_state_of_a_cluster_is_refused(plan, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(NotFound, match="directory has no mini cluster"):
        State(str(file)).load()
    with pytest.raises(UsageError, match="directory is a file"):
        State(str(file)).check_directory()
    state = State(plan.directory)
    state.path.parent.mkdir()
    for broken in ("", "{", "[]", '{"version": 1}', '{"version": 1, "daemons": [], "plan": {}}'):
        state.path.write_text(broken)
        with pytest.raises(ClusterError, match="is damaged") as refused:
            state.load()
        assert refused.value.remedy and refused.value.where == str(state.path)
    assert file.read_text() == "mine"


def test_state_comes_back_and_that_of_another_version_is_refused(plan):
    state = State(plan.directory)
    os.makedirs(plan.directory)
    record = Record(pid=1, start=2, since=3.0, log="/log", log_offset=4)
    state.save(plan, {"namenode": record})
    assert state.load() == (plan, {"namenode": record})
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o600
    assert state.note("namenode", None) == {}
    state.path.write_text(state.path.read_text().replace('"version": 1', '"version": 0'))
    with pytest.raises(ClusterError, match="another version"):
        state.load()


def test_only_one_process_starts_or_stops_a_cluster(plan):
    state = State(plan.directory)
    with state.starting_or_stopping():
        with pytest.raises(ClusterError, match="another process"):
            with State(plan.directory).starting_or_stopping():
                pass


def test_unknown_names_of_daemons_and_ports_are_refused(tmp_path, plan):
    cluster = MiniCluster(plan.directory, say=quiet)
    with pytest.raises(UsageError, match="unknown names of ports"):
        cluster.start(ports={"namenode-https": 1})
    os.makedirs(plan.directory)
    State(plan.directory).save(plan, {})
    for call in (cluster.start, cluster.stop, cluster.kill):
        with pytest.raises(UsageError) as caught:
            call("datanode-9")
        assert "datanode-2" in caught.value.expected


def test_env_of_a_cluster_that_does_not_run_is_an_error(plan):
    os.makedirs(plan.directory)
    State(plan.directory).save(plan, {})
    with pytest.raises(ClusterError, match="does not run"):
        command.export_lines(MiniCluster(plan.directory, say=quiet))


@pytest.mark.parametrize("word", ["namenode", "namenode=", "namenode=x", "namenode=70000"])
def test_a_port_is_name_and_number(word):
    with pytest.raises(UsageError) as caught:
        command.parse_ports([word])
    assert caught.value.got == word
    assert command.parse_ports(["namenode=8020"]) == {"namenode": 8020}


# ---------------------------------------------------------------------------- processes and logs
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("INFO up\njava.net.BindException: taken\n\tat x\nCaused by: y: deep\n\tat z", "y: deep"),
        ("2026 ERROR a.B: first\njava.io.IOException: full\n\tat x", "java.io.IOException: full"),
        ("Error: Could not find or load main class X\n", "Error: Could not find or load main"),
        ("one\ntwo\n\n", "two"),
        ("", "its log is empty"),
    ],
)
def test_the_cause_of_a_death_is_found_in_what_was_logged_since_the_start(tmp_path, text, cause):
    log = tmp_path / "x.log"
    log.write_text("Caused by: an older death\n" + text)
    record = Record(1, 1, 0.0, str(log), len("Caused by: an older death\n"))
    assert daemons.cause_of_death(record).startswith(cause)


def test_everything_marked_is_ended_also_what_ignores_the_question(tmp_path):
    directory = str(tmp_path)
    stubborn = (
        "import signal, time, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", stubborn],
            env={settings.MARK: directory},
            stdout=subprocess.PIPE,
            start_new_session=True,
        ),
        # A container that has thrown its environment away is known by where it works.
        subprocess.Popen(
            [sys.executable, "-c", stubborn],
            env={},
            cwd=_make(tmp_path / "nodemanager-0" / "local" / "usercache"),
            stdout=subprocess.PIPE,
            start_new_session=True,
        ),
    ]
    other = subprocess.Popen(
        [sys.executable, "-c", stubborn],
        env={settings.MARK: directory + "-other"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    try:
        for process in [*processes, other]:
            assert process.stdout.readline() == b"ready\n"
        assert sorted(daemons.marked(directory)) == sorted(process.pid for process in processes)
        daemons.end_all(directory, grace=0.2)
        assert daemons.marked(directory) == []
        assert other.poll() is None
    finally:
        for process in [*processes, other]:
            process.kill()
            process.wait()
            process.stdout.close()


def _make(path):
    path.mkdir(parents=True)
    return path


def test_a_process_id_that_was_given_to_another_is_not_ours():
    ours = daemons.process_start(os.getpid())
    assert daemons.alive(Record(os.getpid(), ours, time.time(), "", 0))
    assert not daemons.alive(Record(os.getpid(), ours - 1, time.time(), "", 0))
