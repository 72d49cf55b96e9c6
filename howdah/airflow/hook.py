"""HowdahHook: runs `howdah` commands where a Connection of type "howdah" says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from howdah.airflow import CONNECTION_TYPE, DEFAULT_CONNECTION, require

require()

from airflow.sdk import BaseHook, Connection  # noqa: E402
from airflow.sdk.exceptions import AirflowNotFoundException  # noqa: E402
from airflow.sdk.log import amask_secret, mask_secret, redact  # noqa: E402

from howdah.airflow import failures, runners, settings  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402

__all__ = ["HowdahHook"]


class HowdahHook(BaseHook):
    """What tasks and triggers ask of Howdah.

    Args:
        conn_id: a Connection of type "howdah"; where the default one is not there, commands run
            on this machine and nothing of a cluster is known.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = CONNECTION_TYPE
    hook_name = "Howdah"

    def __init__(self, conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.conn_id = conn_id
        self._settings: settings.ConnectionSettings | None = None
        self._runner: runners.Runner | None = None

    # --------------------------------------------------------------------------- the Connection
    @property
    def settings(self) -> settings.ConnectionSettings:
        """What the Connection says, checked.

        Raises:
            HowdahCommandRefused: there is no such Connection, or it is not what Howdah takes.
        """
        if self._settings is None:
            try:
                found: Connection | None = self.get_connection(self.conn_id)
            except AirflowNotFoundException:
                found = None
            self._settings = self._checked(found)
            for name, value in self._settings.environment.items():
                mask_secret(value, name)  # only if the name is one of a secret
        return self._settings

    async def asettings(self) -> settings.ConnectionSettings:
        """The same inside a triggerer's event loop, which must not wait for a Connection."""
        if self._settings is None:
            try:
                found: Connection | None = await self.aget_connection(self.conn_id)
            except AirflowNotFoundException:
                found = None
            self._settings = self._checked(found)
            for name, value in self._settings.environment.items():
                await amask_secret(value, name)
        return self._settings

    def _checked(self, found: Connection | None) -> settings.ConnectionSettings:
        with refusals():
            if found is None:
                if self.conn_id == DEFAULT_CONNECTION:
                    return settings.ConnectionSettings()
                raise ConfigError(
                    "there is no such Airflow Connection",
                    where=self.conn_id,
                    expected=f"a Connection of type {CONNECTION_TYPE}",
                    remedy="make it under Admin > Connections, or leave conn_id at"
                    f" {DEFAULT_CONNECTION}",
                )
            if found.conn_type != CONNECTION_TYPE:
                raise ConfigError(
                    "this Airflow Connection is of another type",
                    where=self.conn_id,
                    expected=CONNECTION_TYPE,
                    got=found.conn_type,
                )
            return settings.from_extra(found.extra_dejson, self.conn_id)

    @property
    def backend(self) -> str:
        """Where training runs unless the run says otherwise: "local" or "yarn"."""
        return self.settings.backend

    @property
    def run_root(self) -> str:
        """Where run directories lie."""
        return self.settings.run_root or os.path.join(_airflow_home(), "howdah-runs")

    # ------------------------------------------------------------------------------- commands
    def runner(self) -> runners.Runner:
        """The runner of the Connection: this machine's, or an edge node's."""
        if self._runner is None:
            known = self.settings
            if known.ssh_conn_id is None:
                self._runner = runners.LocalRunner(
                    known.command or runners.local_command(),
                    environment=known.environment,
                    directory=known.working_directory or _airflow_home(),
                )
            else:
                from howdah.airflow.runner_ssh import SshRunner

                self._runner = SshRunner(
                    known.command or "howdah",
                    ssh_conn_id=known.ssh_conn_id,
                    environment=known.environment,
                    directory=known.working_directory,
                )
        return self._runner

    def run(
        self,
        words: Sequence[str],
        *,
        config: Mapping[str, Any] | None = None,
        on_line: Callable[[str], None] | None = None,
        task: str | None = None,
        grace_seconds: float = 60.0,
    ) -> dict[str, Any]:
        """Run `howdah WORDS` to its end; the JSON object that it answers with.

        Args:
            words: the command and its options; `--json` among them.
            config: the configuration, given to the command as `--config -`.
            on_line: told each line of progress; none: the task's log.
            task: names the task (dag, run, task, map index): two commands of one task never run
                at once, the second waits for the end of the first.
            grace_seconds: what the command has to end in order when it is cancelled.
        Raises:
            HowdahCommandRefused: it failed by what it was given (exit codes 1 to 4).
            HowdahCommandFailed: it failed, and a retry may do better.
        """
        done = self.call(
            words, config=config, on_line=on_line, task=task, grace_seconds=grace_seconds
        )
        if done.code == 0 and done.result is not None:
            return done.result
        raise failures.failed(self.error_of(words, done), done.code)

    def call(
        self,
        words: Sequence[str],
        *,
        config: Mapping[str, Any] | None = None,
        on_line: Callable[[str], None] | None = None,
        task: str | None = None,
        grace_seconds: float = 60.0,
    ) -> runners.Done:
        """The same, for a command whose exit code is an answer too (`howdah doctor`)."""
        import yaml

        text = None
        if config is not None:
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
            words = [*words, "--config", "-"]
        tell = on_line or self._to_log
        with refusals():
            done = self.runner().run(
                words, config=text, on_line=lambda line: tell(blotted(line)), lock=task,
                grace_seconds=grace_seconds,
            )  # fmt: skip
        return runners.Done(done.code, blotted(done.result), blotted(done.tail))

    def error_of(self, words: Sequence[str], done: runners.Done) -> dict[str, Any]:
        """The error object of a command that failed."""
        if done.code and done.result and "what" in done.result:
            return done.result
        return self._no_word(words, done)

    def _no_word(self, words: Sequence[str], done: runners.Done) -> dict[str, Any]:
        """The error object of a command that gave none."""
        return {
            "what": f"`howdah {words[0]}` ended without an answer",
            "where": self.runner().where,
            "expected": "one JSON object on stdout",
            "got": "\n".join([f"exit code {done.code}", *done.tail]),
        }

    def _to_log(self, line: str) -> None:
        self.log.info("%s", line)

    def cancel(self, seconds: float = 60.0) -> None:
        """End the command that runs, in order; may be called from a signal handler."""
        if self._runner is not None:
            self._runner.cancel(seconds)

    # ---------------------------------------------------------------------------------- YARN
    def resource_manager(self, *, user: str | None = None, patience: float | None = None) -> Any:
        """YARN's ResourceManager as the Connection tells it.

        Args:
            user: whom to act for (`run.user`).
            patience: seconds to try again while it does not answer; none: the client's own.
        Raises:
            HowdahCommandRefused: nothing says where it is.
        """
        from howdah.hadoop import conf
        from howdah.hadoop.resourcemanager import PATIENCE_SECONDS, ResourceManager

        known = self.settings
        with refusals():
            # An edge node's settings are not this machine's.
            here = {} if known.ssh_conn_id else known.environment
            loaded = conf.load({**os.environ, **here}, names=conf.YARN_FILES)
            if not known.resourcemanager and not any(map(_of_yarn, loaded.values)):
                raise ConfigError(
                    "nothing says where YARN's ResourceManager is",
                    where=f"Airflow Connection {self.conn_id}",
                    expected="the field resourcemanager (http://host:8088), or HADOOP_CONF_DIR in"
                    " the environment of Airflow's machines or in the field environment",
                )
            if known.keytab is not None:
                loaded = loaded.with_values({"hadoop.security.authentication": "kerberos"})
            return ResourceManager(
                loaded, user=user, urls=known.resourcemanager or None,
                patience=PATIENCE_SECONDS if patience is None else patience,
            )  # fmt: skip

    @contextlib.contextmanager
    def logged_in(self) -> Iterator[None]:
        """With the Connection's Kerberos ticket; without a keytab in it, nothing."""
        from howdah.hadoop import kerberos

        known = self.settings
        with kerberos.logged_in(known.keytab, known.principal, f"{self.conn_id}: keytab"):
            yield

    def test_connection(self) -> tuple[bool, str]:
        """What Airflow's button "Test" says: the program answers, the ResourceManager too."""
        try:
            self.run(["config", "explain", "run.name", "--json"], on_line=lambda line: None)
            told = f"howdah answers on {self.runner().where}"
            if self.settings.backend == "yarn":
                with self.logged_in():
                    found = self.resource_manager(patience=5.0).info()
                told += f"; YARN {found.get('resourceManagerVersion')} is {found.get('state')}"
        except (failures.HowdahCommandFailed, HowdahError) as error:
            return False, str(error)
        return True, told


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Howdah's errors in this process, as the exceptions that Airflow takes."""
    try:
        yield
    except HowdahError as error:
        raise failures.of_error(error) from None


def blotted(value: Any) -> Any:
    """The same with `***` for every secret that Airflow knows of.

    Airflow blots them out of the task's log file, but not where the scheduler repeats the log on
    its stdout (LocalExecutor). Names are not looked at: `tokens` are no secret here.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: blotted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(blotted(item) for item in value)
    return value


def _of_yarn(name: str) -> bool:
    return name.startswith("yarn.resourcemanager.")


def _airflow_home() -> str:
    return os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow"))
