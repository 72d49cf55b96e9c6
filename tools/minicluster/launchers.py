"""Thin launchers `hdfs`, `yarn`, `hadoop` and `mapred` that run main classes of the fetched jars.

They have the commands of clients, but not those that start daemons (the mini cluster does that).
"""

from __future__ import annotations

import shlex

from tools.minicluster import classdata, settings
from tools.minicluster.plan import Plan

_COMMON = {
    "jar": "org.apache.hadoop.util.RunJar",
    "version": "org.apache.hadoop.util.VersionInfo",
    "daemonlog": "org.apache.hadoop.log.LogLevel",
}
_YARN_CLI = "org.apache.hadoop.yarn.client.cli"

# command -> main class; a second word is passed on to the class.
COMMANDS: dict[str, dict[str, str]] = {
    "hadoop": {
        **_COMMON,
        "fs": "org.apache.hadoop.fs.FsShell",
        "credential": "org.apache.hadoop.security.alias.CredentialShell",
        "key": "org.apache.hadoop.crypto.key.KeyShell",
        "dtutil": "org.apache.hadoop.security.token.DtUtilShell",
        "kdiag": "org.apache.hadoop.security.KDiag",
        "kerbname": "org.apache.hadoop.security.HadoopKerberosName",
        "conftest": "org.apache.hadoop.util.ConfTest",
        "checknative": "org.apache.hadoop.util.NativeLibraryChecker",
    },
    "hdfs": {
        "dfs": "org.apache.hadoop.fs.FsShell",
        "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
        "fsck": "org.apache.hadoop.hdfs.tools.DFSck",
        "fetchdt": "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher",
        "getconf": "org.apache.hadoop.hdfs.tools.GetConf",
        "groups": "org.apache.hadoop.hdfs.tools.GetGroups",
        "storagepolicies": "org.apache.hadoop.hdfs.tools.StoragePolicyAdmin",
        "cacheadmin": "org.apache.hadoop.hdfs.tools.CacheAdmin",
        "crypto": "org.apache.hadoop.hdfs.tools.CryptoAdmin",
        "ec": "org.apache.hadoop.hdfs.tools.ECAdmin",
        "debug": "org.apache.hadoop.hdfs.tools.DebugAdmin",
        "haadmin": "org.apache.hadoop.hdfs.tools.DFSHAAdmin",
        "lsSnapshottableDir": "org.apache.hadoop.hdfs.tools.snapshot.LsSnapshottableDir",
        "snapshotDiff": "org.apache.hadoop.hdfs.tools.snapshot.SnapshotDiff",
        "oiv": "org.apache.hadoop.hdfs.tools.offlineImageViewer.OfflineImageViewerPB",
        "oev": "org.apache.hadoop.hdfs.tools.offlineEditsViewer.OfflineEditsViewer",
        "version": _COMMON["version"],
    },
    "yarn": {
        **_COMMON,
        "application": f"{_YARN_CLI}.ApplicationCLI application",
        "app": f"{_YARN_CLI}.ApplicationCLI app",
        "applicationattempt": f"{_YARN_CLI}.ApplicationCLI applicationattempt",
        "container": f"{_YARN_CLI}.ApplicationCLI container",
        "node": f"{_YARN_CLI}.NodeCLI",
        "queue": f"{_YARN_CLI}.QueueCLI",
        "logs": f"{_YARN_CLI}.LogsCLI",
        "rmadmin": f"{_YARN_CLI}.RMAdminCLI",
        "cluster": f"{_YARN_CLI}.ClusterCLI",
        "schedulerconf": f"{_YARN_CLI}.SchedConfCLI",
        "nodeattributes": f"{_YARN_CLI}.NodeAttributesCLI",
    },
    "mapred": {
        "job": "org.apache.hadoop.mapred.JobClient",
        "queue": "org.apache.hadoop.mapred.JobQueueClient",
        "version": _COMMON["version"],
    },
}

_TEMPLATE = """\
#!/bin/sh
# {program} of a mini cluster: the real client classes from the fetched jars.
: "${{HADOOP_CONF_DIR:={conf_dir}}}"
: "${{JAVA_HOME:={java_home}}}"
export HADOOP_CONF_DIR JAVA_HOME
# Java takes the names of local files from the locale, and would not find "übung" without one.
[ -n "${{LC_ALL-}}${{LC_CTYPE-}}${{LANG-}}" ] || export LC_ALL=C.UTF-8
pages={pages}
jars={jars}
if [ "${{1-}}" = --config ] && [ $# -ge 2 ]; then
  HADOOP_CONF_DIR=$2
  shift 2
fi
more="${{HADOOP_CLASSPATH:+:$HADOOP_CLASSPATH}}"
# The jars first: a class archive holds for no other order (they hold no configuration).
class_path="$jars:$pages:$HADOOP_CONF_DIR$more"
command="${{1-}}"
[ $# -gt 0 ] && shift
case "$command" in
{cases}
classpath)
  class_path="$HADOOP_CONF_DIR:$pages:$pages/lib/*$more"
  if [ $# -eq 0 ]; then
    printf '%s\\n' "$class_path"
    exit 0
  fi
  main=org.apache.hadoop.util.Classpath ;;
envvars)
  printf "JAVA_HOME='%s'\\nHADOOP_HOME='%s'\\nHADOOP_CONF_DIR='%s'\\n" \\
    "$JAVA_HOME" {home} "$HADOOP_CONF_DIR"
  exit 0 ;;
*)
  echo "usage: {program} [--config DIR] COMMAND ..., COMMAND one of: {names} classpath envvars" >&2
  exit 2 ;;
esac
# HADOOP_CLIENT_OPTS and HADOOP_OPTS hold several arguments each.
# shellcheck disable=SC2086
exec "$JAVA_HOME/bin/java" -Xmx512m {flags} $HADOOP_OPTS $HADOOP_CLIENT_OPTS \\
  -cp "$class_path" $main "$@"
"""


def write(plan: Plan) -> None:
    """Write the launchers into the cluster's HADOOP_HOME/bin."""
    directory = plan.hadoop_home / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    flags = [*settings.java_flags(plan), *classdata.flags(plan)]
    for program, commands in COMMANDS.items():
        cases = "\n".join(f"{command}) main='{main}' ;;" for command, main in commands.items())
        text = _TEMPLATE.format(
            program=program,
            conf_dir=plan.conf_dir,
            java_home=plan.java_home,
            pages=shlex.quote(plan.jars),
            jars=shlex.quote(settings.base_class_path(plan)),
            home=shlex.quote(str(plan.hadoop_home)),
            cases=cases,
            names=" ".join(commands),
            flags=" ".join(shlex.quote(flag) for flag in flags),
        )
        path = directory / program
        path.write_text(text)
        path.chmod(0o755)
