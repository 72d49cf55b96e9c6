"""HowdahHook: run `howdah` commands on the machine that a Connection of type "howdah" names."""

from __future__ import annotations

import howdah.airflow.required

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret, redact

from howdah.airflow import CONNECTION_TYPE, DEFAULT_CONNECTION, failures
from howdah.airflow.form import daily, left_out, trigger_form
from howdah.airflow.runner import runners, settings
from howdah.config import loader as configs
from howdah.errors import ConfigError, HowdahError
from howdah.policy import rules as policies
from howdah.policy.check import Judge
from howdah.policy.paths import shape_problem


class HowdahHook(BaseHook):
    """A Connection's settings, policy, commands and ResourceManager, for tasks and triggers.

    Args:
        conn_id: a Connection of type "howdah"; if the default one does not exist, commands run on
            this machine, without a cluster.
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
        self._policy: policies.Policy | None = None

    # --------------------------------------------------------------------------- the Connection
    @property
    def settings(self) -> settings.ConnectionSettings:
        """The Connection's fields, checked.

        Raises:
            HowdahCommandRefused: the Connection does not exist, or its fields are not valid.
        """
        if self._settings is None:
            try:
                connection: Connection | None = self.get_connection(self.conn_id)
            except AirflowNotFoundException:
                connection = None
            self._settings = self._checked(connection)
            for name, value in self._settings.environment.items():
                mask_secret(value, name)  # if the name is that of a secret
        return self._settings

    def _checked(self, connection: Connection | None) -> settings.ConnectionSettings:
        with refusals():
            if connection is None:
                if self.conn_id == DEFAULT_CONNECTION:
                    return settings.ConnectionSettings()
                raise ConfigError(
                    "this Airflow Connection does not exist",
                    where=self.conn_id,
                    expected=f"a Connection of type {CONNECTION_TYPE}, or {DEFAULT_CONNECTION}",
                )
            if connection.conn_type != CONNECTION_TYPE:
                raise ConfigError(
                    "this Airflow Connection is of another type",
                    where=self.conn_id,
                    expected=CONNECTION_TYPE,
                    got=connection.conn_type,
                )
            return settings.from_extra(connection.extra_dejson, self.conn_id)

    @property
    def run_root(self) -> str:
        """The parent of the run directories."""
        return self.settings.run_root or os.path.join(_airflow_home(), "howdah-runs")

    # --------------------------------------------------------------------------------- policy
    @property
    def policy(self) -> policies.Policy:
        """The policy for values sent to DAGs with this Connection: its own, or the installation's.

        It also allows run_root, the installation's defaults of the form, and the tables and paths
        that these defaults give to the daily DAGs.

        Raises:
            HowdahCommandRefused: the policy or the defaults cannot be read, or are not valid.
        """
        if self._policy is None:
            with refusals():
                policy, name = policies.in_force(self.settings.policy)
                defaults = _merged(
                    policy.defaults, trigger_form.sections(trigger_form.installed_defaults())
                )
                tables, paths = self._granted()
                root = self._whole(self.run_root) or self.run_root
                roots = list(dict.fromkeys([*policy.roots, root, *paths]))
                update = {
                    "roots": roots, "tables": list(dict.fromkeys([*policy.tables, *tables])),
                    "defaults": defaults, "name": policy.name or name,
                }  # fmt: skip
                self._policy = policy.model_copy(update=update)
        return self._policy

    def _granted(self) -> tuple[list[str], list[str]]:
        """Tables and paths that the installation's defaults give to the daily DAGs."""
        sections = trigger_form.sections(trigger_form.installed_defaults())
        days = daily.from_defaults(trigger_form.installation())
        tables, paths = daily.granted(days, configs.from_dict(sections, where="the defaults"))
        whole = [self._whole(path) for path in paths]
        return tables, [path for path in whole if path and shape_problem(path) is None]

    def _whole(self, path: str) -> str | None:
        """The absolute path; None: relative to a directory of an edge node."""
        if "://" in path or path.startswith("/"):
            return path
        if self.settings.ssh_conn_id is not None:
            return None
        return os.path.normpath(os.path.join(self._directory(), os.path.expanduser(path)))

    def _directory(self) -> str:
        return self.settings.working_directory or _airflow_home()

    def judge(self) -> Judge:
        """The policy as a Judge of the values that were sent. An edge node judges its paths."""
        fields = self.settings
        with refusals():
            return Judge(
                self.policy, env={**os.environ, **fields.environment},
                directory=self._directory(), paths=fields.ssh_conn_id is None,
            )  # fmt: skip

    def refuse_unless_listed(self) -> None:
        """Refuse a Connection that was sent unless the installation allows its name.

        The Connection's own policy limits what is sent to the Connection; the installation's
        policy limits which Connections a user may choose.

        Raises:
            HowdahCommandRefused: the name is not allowed.
        """
        with refusals():
            installed, name = policies.in_force()
            default = trigger_form.own_default("conn_id", trigger_form.installed_defaults())
            usual, listed = {default, DEFAULT_CONNECTION}, installed.conn_ids
            fits = self.conn_id in (listed or ()) or policies.ANY in (listed or ())
            if installed.trusted or fits or self.conn_id == default:
                return
            if listed is None and (self.conn_id in usual or self.settings.policy is not None):
                return
            raise ConfigError(
                "conn_id is refused by the policy's rule `conn_ids`: it is not listed",
                where=name,
                expected=", ".join(listed or ())
                or f"{', '.join(sorted(usual))}, or a Connection with its own policy",
                got=self.conn_id,
            )

    # ------------------------------------------------------------------------------- commands
    def runner(self) -> runners.Runner:
        """The runner of the Connection: this machine's, or an edge node's."""
        if self._runner is None:
            fields = self.settings
            if fields.ssh_conn_id is None:
                self._runner = runners.LocalRunner(
                    fields.command or runners.local_command(),
                    environment=fields.environment,
                    directory=self._directory(),
                )
            else:
                from howdah.airflow.runner.ssh import SshRunner

                self._runner = SshRunner(
                    fields.command or "howdah",
                    ssh_conn_id=fields.ssh_conn_id,
                    environment=fields.environment,
                    directory=fields.working_directory,
                )
        return self._runner

    def run(
        self,
        arguments: Sequence[str],
        *,
        config: Mapping[str, Any] | None = None,
        on_line: Callable[[str], None] | None = None,
        task: str | None = None,
        grace_seconds: float = 60.0,
    ) -> dict[str, Any]:
        """Run `howdah ARGUMENTS` until it ends; the JSON object that it prints.

        Args:
            arguments: the command and its options; `--json` among them.
            config: the configuration, sent to the command as `--config -`, with the secrets of
                the installation's defaults; `policy` is applied to it and to the arguments.
            on_line: called with each line of progress; none: the task's log.
            task: names the task (dag, run, task, map index). Two commands of one task never run
                at once: the second waits for the end of the first.
            grace_seconds: time limit for an orderly end after a cancellation.
        Raises:
            HowdahCommandRefused: the command refused its input (exit codes 1 to 4).
            HowdahCommandFailed: the command failed, and a retry may succeed.
        """
        done = self.call(
            arguments, config=config, on_line=on_line, task=task, grace_seconds=grace_seconds
        )
        if done.code == 0 and done.result is not None:
            return done.result
        raise failures.failed(self.error_of(arguments, done), done.code)

    def call(
        self,
        arguments: Sequence[str],
        *,
        config: Mapping[str, Any] | None = None,
        on_line: Callable[[str], None] | None = None,
        task: str | None = None,
        grace_seconds: float = 60.0,
    ) -> runners.CommandResult:
        """Run a command as `run` does and return its result, whatever the exit code.

        `howdah doctor` prints its object with exit code 1.
        """
        text = policy = None
        if not self.policy.trusted:
            policy = policies.to_yaml(self.policy)
        if config is not None:
            with refusals():
                text = configs.to_yaml(left_out.put_back(config))
            arguments = [*arguments, "--config", "-"]
        handle = on_line or (lambda line: self.log.info("%s", line))
        with refusals():
            done = self.runner().run(
                arguments, config=text, policy=policy, on_line=lambda line: handle(masked(line)),
                lock=task, grace_seconds=grace_seconds,
            )  # fmt: skip
        return runners.CommandResult(done.code, masked(done.result), masked(done.tail))

    def error_of(self, arguments: Sequence[str], done: runners.CommandResult) -> dict[str, Any]:
        """The error object of a command that failed, or one for a command that printed none."""
        if done.code and done.result and "what" in done.result:
            return done.result
        return {
            "what": f"`howdah {arguments[0]}` ended without a JSON object on stdout",
            "where": self.runner().where,
            "got": "\n".join([f"exit code {done.code}", *done.tail]),
        }

    def cancel(self, seconds: float = 60.0) -> None:
        """End the running command gracefully; may be called from a signal handler."""
        if self._runner is not None:
            self._runner.cancel(seconds)

    # ---------------------------------------------------------------------------------- YARN
    def resource_manager(self, *, user: str | None = None, patience: float | None = None) -> Any:
        """The ResourceManager that the Connection, or else HADOOP_CONF_DIR, names.

        Args:
            user: proxied user (`run.user`).
            patience: seconds to retry while it does not answer; none: the client's default.
        Raises:
            HowdahCommandRefused: neither names a ResourceManager.
        """
        from howdah.hadoop import conf
        from howdah.hadoop.resourcemanager import PATIENCE_SECONDS, ResourceManager

        fields = self.settings
        with refusals():
            # The environment of an edge node does not apply to this machine.
            here = {} if fields.ssh_conn_id else fields.environment
            loaded = conf.load({**os.environ, **here}, names=conf.YARN_FILES)
            named = any(name.startswith("yarn.resourcemanager.") for name in loaded.values)
            if not fields.resourcemanager and not named:
                raise ConfigError(
                    "the address of YARN's ResourceManager is not set",
                    where=f"Airflow Connection {self.conn_id}",
                    expected="the field resourcemanager (http://host:8088), or HADOOP_CONF_DIR in"
                    " the environment of Airflow's machines or in the field environment",
                )
            if fields.keytab is not None:
                loaded = loaded.with_values({"hadoop.security.authentication": "kerberos"})
            return ResourceManager(
                loaded, user=user, urls=fields.resourcemanager or None,
                patience=PATIENCE_SECONDS if patience is None else patience,
            )  # fmt: skip

    @contextlib.contextmanager
    def logged_in(self) -> Iterator[None]:
        """Context with a Kerberos ticket of the Connection's keytab, if it has one."""
        from howdah.hadoop import kerberos

        fields = self.settings
        with kerberos.logged_in(fields.keytab, fields.principal, f"{self.conn_id}: keytab"):
            yield

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's button "Test": whether the program and the ResourceManager answer."""
        try:
            self.run(["config", "explain", "run.name", "--json"], on_line=lambda line: None)
            answer = f"howdah answers on {self.runner().where}"
            if self.settings.on == "yarn":
                with self.logged_in():
                    info = self.resource_manager(patience=5.0).info()
                answer += f"; YARN {info.get('resourceManagerVersion')} is {info.get('state')}"
        except (failures.HowdahCommandFailed, HowdahError) as error:
            return False, str(error)
        return True, answer


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise a HowdahError of this process as an Airflow exception."""
    try:
        yield
    except HowdahError as error:
        raise failures.of_error(error) from None


def masked(value: Any) -> Any:
    """The value with `***` for every secret that Airflow knows.

    Airflow masks them in the task's log file, but not where the scheduler repeats the log on its
    stdout (LocalExecutor). Keys are kept: `tokens` is not a secret here.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item) for item in value)
    return value


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; values of `other` win."""
    merged = dict(one)
    for name, value in other.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def _airflow_home() -> str:
    return os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow"))
