"""The configuration files of the mini cluster's daemons and clients, from its plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tools.minicluster import kerberos
from tools.minicluster.plan import HOST, Plan
from tools.minicluster.variants import availability, web

MARK = "HOWDAH_MINICLUSTER_DAEMON"  # in the environment of all processes: the cluster's directory
WHITELIST = (  # Hadoop's default
    "JAVA_HOME", "HADOOP_COMMON_HOME", "HADOOP_HDFS_HOME", "HADOOP_CONF_DIR",
    "CLASSPATH_PREPEND_DISTCACHE", "HADOOP_YARN_HOME", "HADOOP_HOME", "PATH", "LANG", "TZ",
)  # fmt: skip


def core_site(plan: Plan) -> dict[str, str]:
    """Addresses, the superuser's right to impersonate, fast reconnection."""
    return {
        "fs.defaultFS": f"hdfs://{plan.authority}",
        "hadoop.tmp.dir": str(plan.path("tmp", "hadoop")),
        f"hadoop.proxyuser.{plan.user}.hosts": "*",
        f"hadoop.proxyuser.{plan.user}.groups": "*",
        # The default falls back to this with a warning, without the native library.
        "hadoop.security.group.mapping": "org.apache.hadoop.security.ShellBasedUnixGroupsMapping",
        "ipc.client.connect.max.retries.on.timeouts": "3",
    }


def hdfs_site(plan: Plan) -> dict[str, str]:
    """Two copies of each block; a lost DataNode is noticed in seconds."""
    return {
        "dfs.namenode.rpc-address": plan.address("namenode"),
        "dfs.namenode.http-address": plan.address("namenode-http"),
        "dfs.http.policy": "HTTP_ONLY",
        "dfs.webhdfs.enabled": "true",
        "dfs.namenode.name.dir": f"file://{plan.path('namenode')}",
        "dfs.replication": str(min(2, plan.datanodes)),
        "dfs.permissions.enabled": "true",
        # Many DataNodes on one host, identified by name.
        "dfs.datanode.hostname": HOST,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # A DataNode is stale (not offered to writers) after 3 s, dead after 2 * 1 s + 10 * 1 s.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        "dfs.namenode.stale.datanode.interval": "3000",
        "dfs.namenode.avoid.read.stale.datanode": "true",
        "dfs.namenode.avoid.write.stale.datanode": "true",
        "dfs.namenode.write.stale.datanode.ratio": "1.0",
        "dfs.namenode.redundancy.interval.seconds": "1",
        "dfs.blockreport.initialDelay": "0",
        # Out of safe mode as soon as the blocks are there (30 s more by default).
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.fs-limits.min-block-size": "4096",
        # A killed process loses nothing that it has written; fsync only protects from power cuts.
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        "dfs.datanode.scan.period.hours": "-1",
        "dfs.namenode.handler.count": "10",
        "dfs.datanode.handler.count": "4",
    }


def yarn_site(plan: Plan) -> dict[str, str]:
    """Two nodes, log aggregation, containers that outlive restarts of either kind of daemon."""
    jars = Path(plan.jars)
    site = {
        "yarn.resourcemanager.hostname": HOST,
        "yarn.resourcemanager.address": plan.address("resourcemanager"),
        "yarn.resourcemanager.scheduler.address": plan.address("resourcemanager-scheduler"),
        "yarn.resourcemanager.resource-tracker.address": plan.address("resourcemanager-tracker"),
        "yarn.resourcemanager.admin.address": plan.address("resourcemanager-admin"),
        "yarn.resourcemanager.webapp.address": plan.address("resourcemanager-http"),
        "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".scheduler.capacity.CapacityScheduler",
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".recovery.FileSystemRMStateStore",
        "yarn.resourcemanager.fs.state-store.uri": f"file://{plan.path('resourcemanager')}",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "2000",
        "yarn.resourcemanager.connect.retry-interval.ms": "1000",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "500",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "15000",
        # From its container's start to registration, which takes Spark minutes on a busy machine.
        "yarn.am.liveness-monitor.expiry-interval-ms": "300000",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.maximum-allocation-mb": str(plan.node_memory_mb),
        "yarn.scheduler.maximum-allocation-vcores": str(plan.node_vcores),
        "yarn.nodemanager.resource.memory-mb": str(plan.node_memory_mb),
        "yarn.nodemanager.resource.cpu-vcores": str(plan.node_vcores),
        "yarn.nodemanager.hostname": HOST,
        # A JVM maps far more than it uses: the check of virtual memory kills healthy containers.
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.recovery.supervised": "true",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": "2000",
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/app-logs",
        "yarn.log.server.url": f"http://{plan.address('historyserver-http')}/jobhistory/logs",
        "yarn.application.classpath": f"{plan.conf_dir},{jars}/lib/*",
        # Variables that containers inherit from their node, unless the application sets them.
        "yarn.nodemanager.env-whitelist": ",".join([*WHITELIST, *node_environment(plan)]),
        # No aux service: MapReduce's shuffle listens on every interface, and nothing here needs it.
    }
    if plan.node_gpus:
        site["yarn.resource-types"] = "yarn.io/gpu"
        site["yarn.nodemanager.resource-type.yarn.io/gpu"] = str(plan.node_gpus)
    return site


def mapred_site(plan: Plan) -> dict[str, str]:
    """Addresses of the history server, which is YARN's log server."""
    return {
        "mapreduce.framework.name": "yarn",
        "mapreduce.jobhistory.address": plan.address("historyserver"),
        "mapreduce.jobhistory.admin.address": plan.address("historyserver-admin"),
        "mapreduce.jobhistory.webapp.address": plan.address("historyserver-http"),
        "yarn.app.mapreduce.am.staging-dir": "/mr-history",
    }


PREEMPTION = {
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    "yarn.resourcemanager.monitor.capacity.preemption.monitoring_interval": "500",
    "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": "2000",
    "yarn.resourcemanager.monitor.capacity.preemption.total_preemption_per_round": "1.0",
    "yarn.resourcemanager.monitor.capacity.preemption.natural_termination_factor": "1.0",
    "yarn.resourcemanager.monitor.capacity.preemption.max_ignored_over_capacity": "0.0",
}
"""Settings of the ResourceManager with which a queue gets its guaranteed half back in seconds."""


def capacity_scheduler(plan: Plan) -> dict[str, str]:
    """Two queues, `default` and `batch`; either may take the whole cluster while it is free."""
    root = "yarn.scheduler.capacity"
    site = {
        f"{root}.root.queues": "default,batch",
        f"{root}.maximum-am-resource-percent": "0.9",
        f"{root}.resource-calculator": "org.apache.hadoop.yarn.util.resource"
        ".DominantResourceCalculator",
    }
    for queue in ("default", "batch"):
        site[f"{root}.root.{queue}.capacity"] = "50"
        site[f"{root}.root.{queue}.maximum-capacity"] = "100"
        site[f"{root}.root.{queue}.user-limit-factor"] = "10"
    return site


def node_environment(plan: Plan) -> dict[str, str]:
    """Environment of the nodes, for daemons and containers."""
    variables = {
        MARK: plan.directory,
        "SPARK_LOCAL_IP": "127.0.0.1",  # Spark's containers too must listen on loopback only
    }
    if plan.kerberos:
        client = kerberos.client_environment(plan)
        # Replaces the node's /etc/krb5.conf; the user's ticket is left out.
        variables.update({key: client[key] for key in ("KRB5_CONFIG", "JAVA_TOOL_OPTIONS")})
    return variables


def own_settings(plan: Plan, daemon: str) -> dict[str, dict[str, str]]:
    """Settings of one daemon among several of its kind: its ports and folders."""
    kind = availability.kind_of(daemon)
    if kind == "datanode":
        return {
            "hdfs-site": {
                "dfs.datanode.address": plan.address(daemon),
                "dfs.datanode.http.address": plan.address(f"{daemon}-http"),
                "dfs.datanode.ipc.address": plan.address(f"{daemon}-ipc"),
                "dfs.datanode.data.dir": f"file://{plan.path(daemon)}",
            }
        }
    if kind == "nodemanager":
        return {
            "yarn-site": {
                "yarn.nodemanager.address": plan.address(daemon),
                "yarn.nodemanager.localizer.address": plan.address(f"{daemon}-localizer"),
                "yarn.nodemanager.webapp.address": plan.address(f"{daemon}-http"),
                "yarn.nodemanager.local-dirs": str(plan.path(daemon, "local")),
                "yarn.nodemanager.log-dirs": str(plan.path(daemon, "logs")),
                "yarn.nodemanager.recovery.dir": str(plan.path(daemon, "recovery")),
            }
        }
    return availability.own(plan, daemon) if plan.ha else {}


LOG4J = """\
log4j.rootLogger={level},console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{{ISO8601}} %p %c{{2}}: %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=WARN
log4j.logger.BlockStateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.StateChange=WARN
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


def daemon_conf(plan: Plan, daemon: str) -> Path:
    """The directory with a daemon's configuration."""
    return plan.path("conf", daemon)


def sites(plan: Plan, daemon: str | None = None) -> dict[str, dict[str, str]]:
    """Settings of clients, or of one daemon: {file: {key: value}}."""
    files = {
        "core-site": core_site(plan),
        "hdfs-site": hdfs_site(plan),
        "yarn-site": yarn_site(plan),
        "mapred-site": mapred_site(plan),
        "capacity-scheduler": capacity_scheduler(plan),
    }
    if plan.kerberos:
        _merge(files, kerberos.site(plan))
    if plan.ha:
        availability.pair(files, plan)
    if daemon is not None:
        _merge(files, own_settings(plan, daemon))
    if plan.tls:
        web.secure(files, plan)
    _merge(files, plan.extra)
    return _merge(files, plan.own.get(daemon, {}) if daemon else {})


def write(plan: Plan, daemons: Iterable[str]) -> None:
    """Write the clients' and every daemon's configuration."""
    _write_directory(plan.conf_dir, sites(plan), level="WARN")
    for daemon in daemons:
        write_own(plan, daemon)


def write_own(plan: Plan, daemon: str) -> None:
    """Write one daemon's configuration."""
    _write_directory(daemon_conf(plan, daemon), sites(plan, daemon), level="INFO")


def _merge(
    files: dict[str, dict[str, str]], more: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    for site, values in more.items():
        files.setdefault(site, {}).update(values)
    return files


def _write_directory(
    directory: Path, sites: Mapping[str, Mapping[str, str]], *, level: str
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for site, values in sites.items():
        write_site(directory / f"{site}.xml", values)
    (directory / "log4j.properties").write_text(LOG4J.format(level=level))


def write_site(path: Path, values: Mapping[str, str]) -> None:
    """Write a Hadoop configuration file atomically."""
    lines = ['<?xml version="1.0"?>', "<configuration>"]
    for key in sorted(values):
        pair = f"<name>{escape(key)}</name><value>{escape(values[key])}</value>"
        lines.append(f"  <property>{pair}</property>")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("\n".join([*lines, "</configuration>", ""]))
    temporary.replace(path)


def base_class_path(plan: Plan) -> str:
    """The jars, in a fixed order: a class archive is valid for one order only."""
    return ":".join(str(path) for path in sorted(Path(plan.jars, "lib").glob("*.jar")))


def class_path(plan: Plan, conf: Path) -> str:
    """Class path of a daemon: the jars, the web pages, its configuration.

    The configuration comes last, since a class archive would not be valid if it came first; no jar
    has a file of its names.
    """
    return f"{base_class_path(plan)}:{plan.jars}:{conf}"


def java_flags(plan: Plan) -> list[str]:
    """Flags of every JVM: packages that Hadoop needs opened, IPv4 only, files in the directory."""
    packages = ("lang", "lang.reflect", "util", "util.concurrent", "io", "net", "nio")

    flags = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in packages]
    if plan.kerberos:
        flags.append(f"-Djava.security.krb5.conf={kerberos.kdc_path(plan, 'krb5.conf')}")
    return [
        *flags,
        # These halve the start-up time: no second compiler, collector threads or hsperfdata.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={plan.path('tmp')}",
    ]
