"""High availability (`--ha`): two NameNodes and two ResourceManagers, of which one each is active.

NameNodes share their edits through JournalNodes. ZooKeeper decides which one is active: a failover
controller (zkfc) beside each NameNode asks it, and an elector inside each ResourceManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.minicluster.plan import SERVICE, Plan
from tools.minicluster.variants import web

MEMBERS = {
    "namenode": {"nn1": "namenode", "nn2": "namenode-2"},
    "resourcemanager": {"rm1": "resourcemanager", "rm2": "resourcemanager-2"},
}
"""{kind: {name in the settings: daemon}}"""
ZOOKEEPER = "zookeeper"
JOURNALNODES = [f"journalnode-{n}" for n in range(3)]
CONTROLLERS = {"nn1": "zkfc-1", "nn2": "zkfc-2"}
_HDFS = "org.apache.hadoop.hdfs"
MAINS = {
    ZOOKEEPER: "org.apache.zookeeper.server.ZooKeeperServerMain",
    "journalnode": f"{_HDFS}.qjournal.server.JournalNode",
    "zkfc": f"{_HDFS}.tools.DFSZKFailoverController",
}
NOTICED_MS = 5000
"""A stopped master is replaced after this. By default Hadoop waits 45 s for a NameNode, 10 s for a
ResourceManager, and clients wait 120 s for an answer."""


def kind_of(name: str) -> str:
    """ "namenode" of "namenode-2"."""
    return name.partition("-")[0]


def is_first(name: str) -> bool:
    """True for what the others need in order to start."""
    return name == ZOOKEEPER or name in JOURNALNODES


def members(kind: str, ha: bool) -> list[str]:
    """The daemons of a kind."""
    return list(MEMBERS[kind].values()) if ha else [kind]


def among(names: Iterable[str], kind: str) -> list[str]:
    """Those of a kind."""
    return [name for name in names if kind_of(name) == kind]


def arguments(plan: Plan, name: str, conf: Path) -> list[str]:
    """A daemon's arguments. ZooKeeper's are its settings; they are written here."""
    if name != ZOOKEEPER:
        return []
    path = conf / "zoo.cfg"
    path.write_text(
        f"""clientPortAddress=127.0.0.1
clientPort={plan.ports[ZOOKEEPER]}
dataDir={plan.path(ZOOKEEPER)}
tickTime=1000
maxClientCnxns=0
admin.enableServer=false
"""
    )
    return [str(path)]


# ---------------------------------------------------------------------------------- who is active
_STATES = {
    "namenode": ("Hadoop:service=NameNode,name=NameNodeStatus", "State"),
    "resourcemanager": ("Hadoop:service=ResourceManager,name=RMInfo", "State"),
}


def state(plan: Plan, daemon: str) -> str | None:
    """ "active" or "standby"; None: it does not answer."""
    bean, attribute = _STATES[kind_of(daemon)]
    attributes = web.jmx(plan, f"{daemon}-http", bean, attribute)
    return str(attributes[attribute]).lower() if attributes else None


def active(plan: Plan, kind: str, running: Iterable[str] | None = None) -> str | None:
    """The active daemon of a kind ("namenode", "resourcemanager"); None: there is none now.

    Args:
        running: the daemons that run; None: all may.
    """
    if not plan.ha:
        return kind
    candidates = members(kind, ha=True) if running is None else among(running, kind)
    return next((one for one in candidates if state(plan, one) == "active"), None)


# -------------------------------------------------------------------------------------- settings
def pair(files: dict[str, dict[str, str]], plan: Plan) -> None:
    """Change the settings of one NameNode and one ResourceManager to those of two each."""
    zookeeper = plan.address(ZOOKEEPER)
    files["core-site"] |= {
        "ha.zookeeper.quorum": zookeeper,
        "ha.zookeeper.session-timeout.ms": str(NOTICED_MS),
        "ha.health-monitor.rpc-timeout.ms": str(NOTICED_MS),
        "ha.failover-controller.graceful-fence.rpc-timeout.ms": "1000",
        "hadoop.zk.address": zookeeper,
        "hadoop.zk.timeout-ms": str(NOTICED_MS),
        "ipc.client.rpc-timeout.ms": str(2 * NOTICED_MS),
    }
    hdfs = files["hdfs-site"]
    _spread(plan, hdfs, "namenode", f".{SERVICE}")
    del hdfs["dfs.namenode.name.dir"]
    journals = ";".join(plan.address(name) for name in JOURNALNODES)
    hdfs |= {
        "dfs.nameservices": SERVICE,
        f"dfs.ha.namenodes.{SERVICE}": ",".join(MEMBERS["namenode"]),
        f"dfs.client.failover.proxy.provider.{SERVICE}": "org.apache.hadoop.hdfs.server.namenode"
        ".ha.ConfiguredFailoverProxyProvider",
        "dfs.namenode.shared.edits.dir": f"qjournal://{journals}/{SERVICE}",
        "dfs.ha.automatic-failover.enabled": "true",
        # JournalNodes refuse an earlier NameNode that goes on.
        "dfs.ha.fencing.methods": "shell(/bin/true)",
        "dfs.ha.tail-edits.period": "1s",
        "dfs.ha.zkfc.nn.http.timeout.ms": "1000",
    }
    for name, member in MEMBERS["namenode"].items():
        hdfs[f"dfs.namenode.name.dir.{SERVICE}.{name}"] = f"file://{plan.path(member)}"
        hdfs[f"dfs.ha.zkfc.port.{SERVICE}.{name}"] = str(plan.ports[CONTROLLERS[name]])
    if plan.kerberos:
        hdfs |= {
            "dfs.journalnode.kerberos.principal": hdfs["dfs.namenode.kerberos.principal"],
            "dfs.journalnode.keytab.file": hdfs["dfs.namenode.keytab.file"],
            "dfs.journalnode.kerberos.internal.spnego.principal": hdfs[
                "dfs.namenode.kerberos.internal.spnego.principal"
            ],
        }
    yarn = files["yarn-site"]
    _spread(plan, yarn, "resourcemanager")
    yarn |= {
        "yarn.resourcemanager.ha.enabled": "true",
        "yarn.resourcemanager.cluster-id": SERVICE,
        "yarn.resourcemanager.zk-address": zookeeper,  # of the elector; hadoop.zk: of the store
        "yarn.resourcemanager.zk-timeout-ms": str(NOTICED_MS),
        "yarn.resourcemanager.ha.rm-ids": ",".join(MEMBERS["resourcemanager"]),
        "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".recovery.ZKRMStateStore",
        "yarn.client.failover-sleep-base-ms": "500",
        "yarn.client.failover-sleep-max-ms": "2000",
    }


def _spread(plan: Plan, values: dict[str, str], kind: str, service: str = "") -> None:
    """Replace each setting that has an address of the kind's first daemon by one for each member,
    such as `dfs.namenode.rpc-address` by `dfs.namenode.rpc-address.howdah.nn1` and ...nn2."""
    first, second = MEMBERS[kind].values()
    ends = [name.removeprefix(second) for name in plan.ports if name.startswith(second)]
    for key, value in list(values.items()):
        for end in ends:
            if value == plan.address(first + end):
                values.pop(key, None)
                for name, member in MEMBERS[kind].items():
                    values[f"{key}{service}.{name}"] = plan.address(member + end)


def own(plan: Plan, daemon: str) -> dict[str, dict[str, str]]:
    """Settings of one of these daemons: a JournalNode's addresses, else which one of two it is."""
    if kind_of(daemon) == "journalnode":
        return {
            "hdfs-site": {
                "dfs.journalnode.rpc-address": plan.address(daemon),
                "dfs.journalnode.http-address": plan.address(f"{daemon}-http"),
                "dfs.journalnode.edits.dir": str(plan.path(daemon)),
            }
        }
    for members in (MEMBERS["namenode"], CONTROLLERS):
        for name, member in members.items():
            if daemon == member:
                return {"hdfs-site": {"dfs.ha.namenode.id": name}}
    for name, member in MEMBERS["resourcemanager"].items():
        if daemon == member:
            return {"yarn-site": {"yarn.resourcemanager.ha.id": name}}
    return {}
