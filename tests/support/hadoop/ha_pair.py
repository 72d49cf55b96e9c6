"""A highly available HDFS: two real NameNodes of one name service, and a DataNode.

The edit log lies in a directory that both reach, and commands choose the active one, as on clusters
without ZooKeeper.
"""

import contextlib
import dataclasses
import getpass
import json
import os
import subprocess
from pathlib import Path

from tests.support.waiting import wait_until
from tools.minicluster import daemons, host, settings
from tools.minicluster.maven import jars
from tools.minicluster.plan import Plan

SERVICE = "pair"
NAMENODES = ("nn1", "nn2")
_HDFS = "org.apache.hadoop.hdfs"
_MAIN = f"{_HDFS}.server.namenode.NameNode"
LIMIT = 120.0


class HaPair:
    """Started by `with`; `kill`, `activate` and `state` speak of "nn1" and "nn2"."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.processes = {}
        self._held = contextlib.ExitStack()

    def __enter__(self):
        names = [f"{name}{end}" for name in NAMENODES for end in ("", "-http")]
        names += ["datanode", "datanode-http", "datanode-ipc"]
        ports = self._held.enter_context(host.reserve_ports(names, {}, {}))
        self.plan = Plan(
            directory=str(self.directory), jars=str(jars.fetch(print)),
            java_home=host.find_java(), user=getpass.getuser(), ports=ports,
        )  # fmt: skip
        (self.directory / "tmp").mkdir(parents=True)
        for name in (*NAMENODES, "datanode"):
            self._write(name, self._settings(name))
        self._write("client", self._settings(None))
        try:
            self._java("nn1", _MAIN, "-format", "-nonInteractive").check_returncode()
            self.start("nn1")
            self.start("datanode")
            self.activate("nn1")
            self._java("nn2", _MAIN, "-bootstrapStandby", "-nonInteractive").check_returncode()
            self.start("nn2")
            wait_until(lambda: self.state("nn2") == "standby", LIMIT)
            wait_until(lambda: all(self._live(name) for name in NAMENODES), LIMIT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._held.close()

    @property
    def conf_dir(self):
        return self.directory / "conf-client"

    def start(self, name):
        main = f"{_HDFS}.server.datanode.DataNode" if name == "datanode" else _MAIN
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                self._argv(name, main), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        if name in NAMENODES:
            wait_until(lambda: self.state(name) is not None, LIMIT)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def activate(self, name):
        """What an administrator does once the other one is known to be gone."""
        done = self._java(
            "client",
            f"{_HDFS}.tools.DFSHAAdmin",
            "-ns",
            SERVICE,
            "-transitionToActive",
            "--forceactive",
            name,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until(lambda: self.state(name) == "active", LIMIT)

    def state(self, name):
        """ "active" or "standby"; None: it does not answer."""
        bean = "Hadoop:service=NameNode,name=FSNamesystem"
        beans = daemons.jmx(self.plan, f"{name}-http", bean, "tag.HAState")
        return beans and beans["tag.HAState"]

    def _live(self, name):
        bean = "Hadoop:service=NameNode,name=NameNodeInfo"
        beans = daemons.jmx(self.plan, f"{name}-http", bean, "LiveNodes", "Safemode")
        return beans and json.loads(beans["LiveNodes"]) and not beans["Safemode"]

    def _settings(self, name):
        shared = {
            **settings.hdfs_site(self._plan_without_namenode()),
            "dfs.replication": "1",
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": ",".join(NAMENODES),
            f"dfs.client.failover.proxy.provider.{SERVICE}":
                f"{_HDFS}.server.namenode.ha.ConfiguredFailoverProxyProvider",
            "dfs.namenode.shared.edits.dir": f"file://{self.directory}/edits",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.datanode.data.dir": f"file://{self.directory}/blocks",
            "dfs.datanode.address": self.plan.address("datanode"),
            "dfs.datanode.http.address": self.plan.address("datanode-http"),
            "dfs.datanode.ipc.address": self.plan.address("datanode-ipc"),
        }  # fmt: skip
        for one in NAMENODES:
            shared[f"dfs.namenode.rpc-address.{SERVICE}.{one}"] = self.plan.address(one)
            shared[f"dfs.namenode.http-address.{SERVICE}.{one}"] = self.plan.address(f"{one}-http")
        if name in NAMENODES:
            shared |= {
                "dfs.ha.namenode.id": name,
                "dfs.namenode.name.dir": f"file://{self.directory}/{name}",
            }
        core = {"fs.defaultFS": f"hdfs://{SERVICE}", "hadoop.tmp.dir": f"{self.directory}/tmp"}
        return {"core-site": core, "hdfs-site": shared}

    def _plan_without_namenode(self):
        """The mini cluster's settings want the port of its one NameNode; none of it is kept."""
        return dataclasses.replace(
            self.plan, ports={**self.plan.ports, "namenode": 0, "namenode-http": 0}
        )

    def _write(self, name, sites):
        place = self.directory / f"conf-{name}"
        place.mkdir()
        for site, values in sites.items():
            values.pop("dfs.namenode.rpc-address", None)
            values.pop("dfs.namenode.http-address", None)
            settings.write_site(place / f"{site}.xml", values)

    def _argv(self, name, main, *args):
        path = settings.class_path(self.plan, self.directory / f"conf-{name}")
        flags = [daemons.HEAP, *settings.java_flags(self.plan)]
        return [f"{self.plan.java_home}/bin/java", *flags, "-cp", path, main, *args]

    def _java(self, name, main, *args):
        return subprocess.run(
            self._argv(name, main, *args), capture_output=True, text=True, timeout=LIMIT,
            stdin=subprocess.DEVNULL, env={**os.environ, "HADOOP_USER_NAME": getpass.getuser()},
        )  # fmt: skip
