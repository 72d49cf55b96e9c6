"""Client's view of a mini cluster: addresses, environment, commands, Kerberos, files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from howdah.errors import ClusterError
from tools.minicluster import daemons, kerberos
from tools.minicluster.contents import Contents, RestContents, SecureContents
from tools.minicluster.daemons import Record
from tools.minicluster.plan import Plan
from tools.minicluster.state import State
from tools.minicluster.variants import availability, web


class Access:
    """The client's part of `MiniCluster`.

    Args:
        directory: the cluster's directory.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.realpath(directory)
        self._state = State(self.directory)

    @property
    def plan(self) -> Plan:
        """The cluster's plan."""
        return self._state.load()[0]

    @property
    def records(self) -> dict[str, Record]:
        """The daemons that were started and not stopped or killed through `MiniCluster`."""
        return self._state.load()[1]

    # -------------------------------------------------------------------------------- addresses
    @property
    def hdfs_url(self) -> str:
        """hdfs://localhost:PORT, or of a name service."""
        return f"hdfs://{self.plan.authority}"

    @property
    def webhdfs_url(self) -> str:
        """webhdfs://localhost:PORT, or of a name service; with TLS swebhdfs://."""
        plan = self.plan
        scheme = "swebhdfs" if plan.tls else "webhdfs"
        return f"{scheme}://{plan.authority if plan.ha else plan.address('namenode-http')}"

    @property
    def conf_dir(self) -> str:
        """HADOOP_CONF_DIR for clients."""
        return str(self.plan.conf_dir)

    def exports(self) -> dict[str, str]:
        """Environment variables for a shell to use the cluster; PATH has only the added part."""
        plan = self.plan
        return {
            "HADOOP_CONF_DIR": str(plan.conf_dir),
            "YARN_CONF_DIR": str(plan.conf_dir),
            "HADOOP_HOME": str(plan.hadoop_home),
            "JAVA_HOME": plan.java_home,
            "PATH": str(plan.hadoop_home / "bin"),
            "SPARK_LOCAL_IP": "127.0.0.1",  # Spark's driver too stays on loopback
            **(kerberos.client_environment(plan) if plan.kerberos else {}),
            **(web.client_environment(plan) if plan.tls else {}),
        }

    @property
    def env(self) -> dict[str, str]:
        """os.environ with the variables for a subprocess to use the cluster."""
        added = self.exports()
        added["PATH"] = f"{added['PATH']}:{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **added}

    def run(
        self, *argv: str, check: bool = True, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess:
        """Run a command such as ("hdfs", "dfs", "-ls", "/") and capture its output as text.

        Args:
            env: variables besides `self.env`.

        Raises:
            ClusterError: the command failed (unless check=False); with the end of its output.
        """
        done = subprocess.run(
            argv,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            **{"timeout": 300, **options},
        )
        if check and done.returncode != 0:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise ClusterError(
                f"{' '.join(argv)} ended with {done.returncode}", got="\n".join(output[-5:])
            )
        return done

    # ----------------------------------------------------------------------------------- health
    def status(self) -> dict[str, Any]:
        """{directory, hdfs, webhdfs, resourcemanager, conf_dir, daemons: {name: {state, pid, log,
        problem, ports}}}; state is running, unhealthy, paused, died or stopped."""
        plan, records = self._state.load()
        statuses: dict[str, Any] = {}
        manager = self.active("resourcemanager")
        for name, daemon in daemons.catalogue_of(plan).items():
            ports = {port: plan.ports[port] for port in daemons.ports_of([daemon])}
            record = records.get(name)
            if record is None:
                statuses[name] = {"state": "stopped", "pid": None, "ports": ports}
                continue
            if not daemons.alive(record):
                state, text = "died", daemons.cause_of_death(record)
            else:
                text = daemons.problem(plan, name, records)
                state = "paused" if record.paused else "unhealthy" if text else "running"
            statuses[name] = {
                "state": state,
                "pid": record.pid,
                "log": record.log,
                "problem": text,
                "ports": ports,
            }
        return {
            "directory": self.directory,
            "hdfs": self.hdfs_url,
            "webhdfs": self.webhdfs_url,
            "resourcemanager": f"{web.scheme(plan)}://{plan.address(f'{manager}-http')}",
            "conf_dir": self.conf_dir,
            "daemons": statuses,
        }

    def active(self, kind: str) -> str:
        """The active daemon of a kind ("namenode", "resourcemanager"), or the first if none is."""
        plan, records = self._state.load()
        answering = [name for name, record in records.items() if not record.paused]
        return availability.active(plan, kind, answering) or kind

    def logs(self) -> dict[str, str]:
        """{daemon: its log file}."""
        return {path.stem: str(path) for path in sorted(self.plan.path("logs").glob("*.log"))}

    # --------------------------------------------------------------------------------- Kerberos
    @property
    def realm(self) -> str:
        """The Kerberos realm."""
        return kerberos.principal(self.plan, "").lstrip("@")

    @property
    def krb5_conf(self) -> str:
        """KRB5_CONFIG of clients."""
        return kerberos.client_environment(self.plan)["KRB5_CONFIG"]

    def principal(self, user: str) -> str:
        """user@REALM."""
        return kerberos.principal(self.plan, user)

    def keytab(self, user: str) -> str:
        """A keytab for a user of the realm, created at the first call."""
        return kerberos.keytab(self.plan, user)

    # --------------------------------------------------------------- as the cluster's superuser
    def run_as_superuser(self, *argv: str) -> subprocess.CompletedProcess:
        """`run` as the superuser, with a ticket if the cluster is secure."""
        plan = self.plan
        if plan.kerberos:
            return self.run(*argv, env=kerberos.admin_environment(plan))
        return self.run(*argv, env={"HADOOP_USER_NAME": plan.user})

    def _contents(self) -> Contents:
        plan = self.plan
        if plan.kerberos is None:
            return RestContents(plan)
        return SecureContents(plan, lambda *argv: self.run_as_superuser(*argv).stdout)

    def make_dir(self, path: str, mode: str = "1777") -> None:
        """Make a directory on HDFS (a path without scheme)."""
        self._contents().make_dirs({path: mode})

    def make_home(self, user: str) -> None:
        """Make /user/<user> with that user as owner, as an administrator does."""
        path = f"/user/{user}"
        contents = self._contents()
        contents.make_dirs({path: "700"})
        contents.give(path, user)

    def remove(self, path: str) -> None:
        """Remove a path on HDFS recursively; a missing path is not an error."""
        self._contents().remove(path)

    def end_applications(self) -> None:
        """Kill all applications and wait for their end."""
        self._contents().end_applications()
