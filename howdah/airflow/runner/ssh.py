"""Run commands on an edge node by an SSH Connection of Airflow's."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from howdah.airflow.runner.runners import Runner, Streams
from howdah.errors import ClusterError, ConfigError, HowdahError, UsageError


class SshRunner(Runner):
    """Runs commands on the machine that an SSH Connection names.

    The remote command line holds only the command's arguments; configuration and environment, with
    their secrets, go through its stdin, and only to a host whose key is known.
    """

    silence_seconds = 60.0
    """Time without heartbeats after which the guard ends the command: a network that drops all
    packets does not close its stdin."""

    def __init__(
        self,
        command: str,
        *,
        ssh_conn_id: str,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        super().__init__(command, environment=environment, directory=directory)
        self._conn_id = ssh_conn_id
        self._made: Any = None

    @property
    def where(self) -> str:
        hook = self._made
        if hook is None:
            return f"the edge node of {self._conn_id}"
        return f"{hook.username}@{hook.remote_host}:{hook.port}"

    def open(self, argv: Sequence[str]) -> Streams:
        import paramiko

        hook = self._hook()
        try:
            client = hook.get_conn()
            hook.client = None  # each command opens and closes its own connection
        except paramiko.BadHostKeyException as error:
            raise self._refused("the edge node's host key is not the known one", error) from None
        except paramiko.AuthenticationException as error:
            raise self._refused("the edge node refuses Airflow's login", error) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            if "known_hosts" in str(error):
                raise self._refused("the edge node's host key is not known", error) from None
            raise ClusterError(
                "the edge node cannot be reached by SSH",
                where=self.where,
                got=str(error) or type(error).__name__,
                remedy=f"check the Connection {self._conn_id} and the node",
            ) from None
        try:
            return _Channel(client, shlex.join(argv))
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            raise ClusterError(
                "the edge node refuses to run a command",
                where=self.where,
                got=str(error) or type(error).__name__,
            ) from None

    def _hook(self) -> Any:
        if self._made is not None:
            return self._made
        from airflow.sdk.exceptions import AirflowException

        try:
            from airflow.providers.ssh.hooks.ssh import SSHHook
        except ImportError as error:
            raise UsageError(
                "commands on an edge node need Airflow's SSH provider",
                where="ssh_conn_id",
                got=str(error),
                remedy="pip install 'howdah[airflow]', or apache-airflow-providers-ssh",
            ) from None
        try:
            made = SSHHook(ssh_conn_id=self._conn_id)
        except (AirflowException, ValueError, OSError) as error:
            raise ConfigError(
                "the SSH Connection of the edge node cannot be used",
                where=self._conn_id,
                got=str(error),
                remedy="create it under Admin > Connections: type ssh, with host, login and a key",
            ) from None
        if made.no_host_key_check:  # the provider's default before version 7
            raise ConfigError(
                "the SSH Connection does not check the edge node's host key: any machine that"
                " answers at its address would get the Connection's secrets",
                where=f"{self._conn_id}, extra no_host_key_check",
                remedy='set {"no_host_key_check": false} and the host_key of the node',
            )
        self._made = made
        return made

    def _refused(self, what: str, error: Exception) -> HowdahError:
        return ConfigError(
            what,
            where=self.where,
            got=str(error),
            remedy=f"check login, key and host_key of the Connection {self._conn_id}",
        )


class _Channel(Streams):
    """One command over its own connection."""

    def __init__(self, client: Any, command: str) -> None:
        self._client = client
        transport = client.get_transport()
        transport.set_keepalive(15)  # to notice a dead connection on this side too
        self._channel = transport.open_session()
        self._channel.exec_command(command)

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def out(self) -> Iterator[bytes]:
        return self._read(self._channel.recv)

    def err(self) -> Iterator[bytes]:
        return self._read(self._channel.recv_stderr)

    def _read(self, receive: Any) -> Iterator[bytes]:
        with contextlib.suppress(OSError, EOFError):
            while data := receive(65536):
                yield data

    def wait(self) -> int:
        return self._channel.recv_exit_status()  # -1: the connection ended before it came

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()
        self._client.close()
