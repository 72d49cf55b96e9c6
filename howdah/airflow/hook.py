"""HowdahHook: run `howdah` commands on the machine that a Connection of type "howdah" names."""

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

from howdah import storage  # noqa: E402
from howdah.airflow import failures  # noqa: E402
from howdah.airflow.form import daily, left_out, trigger_form  # noqa: E402
from howdah.airflow.runner import runners, settings  # noqa: E402
from howdah.config import loader as configs  # noqa: E402
from howdah.config.loader import to_yaml  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402
from howdah.policy import rules as policies  # noqa: E402
from howdah.policy.check import Judge  # noqa: E402
from howdah.policy.paths import shape_problem  # noqa: E402


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
            HowdahCommandRefused: there is no such Connection, or its fields are not valid.
        """
        if self._settings is None:
            try:
                found: Connection | None = self.get_connection(self.conn_id)
            except AirflowNotFoundException:
                found = None
            self._settings = self._checked(found)
            for name, value in self._settings.environment.items():
                mask_secret(value, name)  # if the name is that of a secret
        return self._settings

    async def asettings(self) -> settings.ConnectionSettings:
        """The same inside a triggerer's event loop, without blocking it."""
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
        """Where training runs unless the run names a backend: "local" or "yarn"."""
        return self.settings.backend

    @property
    def run_root(self) -> str:
        """The directory of the run directories."""
        return self.settings.run_root or os.path.join(_airflow_home(), "howdah-runs")

    # --------------------------------------------------------------------------------- policy
    @property
    def policy(self) -> policies.Policy:
        """What may be sent to DAGs with this Connection: its own policy, else the installation's.

        run_root, the installation's defaults of the form, and what its daily DAGs read and write by
        them are allowed in addition.

        Raises:
            HowdahCommandRefused: the policy or the defaults cannot be read, or are not valid.
        """
        if self._policy is None:
            with refusals():
                found, name = policies.in_force(self.settings.policy)
                defaults = _merged(
                    found.defaults, trigger_form.sections(trigger_form.installed_defaults())
                )
                tables, paths = self._granted()
                roots = list(dict.fromkeys([*found.roots, self._root(), *paths]))
                update = {
                    "roots": roots, "tables": list(dict.fromkeys([*found.tables, *tables])),
                    "defaults": defaults, "name": found.name or name,
                }  # fmt: skip
                self._policy = found.model_copy(update=update)
        return self._policy

    def _granted(self) -> tuple[list[str], list[str]]:
        """Tables and paths of the installation's own daily DAGs."""
        sections = trigger_form.sections(trigger_form.installed_defaults())
        own = daily.from_defaults(trigger_form.installation())
        tables, paths = daily.granted(own, configs.from_dict(sections, where="the defaults"))
        whole = [self._whole(path) for path in paths]
        return tables, [path for path in whole if path and shape_problem(path) is None]

    def _whole(self, path: str) -> str | None:
        """A path that is absolute; None: relative to a directory that is not known here."""
        if "://" in path or path.startswith("/"):
            return path
        if self.settings.ssh_conn_id is not None:
            return None
        return os.path.normpath(os.path.join(self._directory(), os.path.expanduser(path)))

    def _root(self) -> str:
        """run_root, made absolute if it is a directory of this machine."""
        known, root = self.settings, self.run_root
        if known.ssh_conn_id is None and storage.is_local(root) and "://" not in root:
            return os.path.join(self._directory(), os.path.expanduser(root))
        return root

    def _directory(self) -> str:
        return self.settings.working_directory or _airflow_home()

    def judge(self) -> Judge:
        """The policy as a Judge of what was sent. An edge node judges its own paths."""
        known = self.settings
        with refusals():
            return Judge(
                self.policy, env={**os.environ, **known.environment},
                directory=self._directory(), paths=known.ssh_conn_id is None,
            )  # fmt: skip

    def refuse_unless_listed(self) -> None:
        """Refuse a Connection that was sent unless the installation allows its name.

        The Connection's own policy does not decide this: it says what may be asked of the
        Connection, not who may choose it.

        Raises:
            HowdahCommandRefused: it is not allowed.
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
                "conn_id is refused by the policy's rule `conn_ids`: it is not one of them",
                where=name,
                expected=", ".join(listed or ())
                or f"{', '.join(sorted(usual))}, or a Connection with a policy of its own",
                got=self.conn_id,
                remedy="leave conn_id as it is, or have the administrator of this installation list"
                " it",
            )

    # ------------------------------------------------------------------------------- commands
    def runner(self) -> runners.Runner:
        """The runner of the Connection: this machine's, or an edge node's."""
        if self._runner is None:
            known = self.settings
            if known.ssh_conn_id is None:
                self._runner = runners.LocalRunner(
                    known.command or runners.local_command(),
                    environment=known.environment,
                    directory=self._directory(),
                )
            else:
                from howdah.airflow.runner.ssh import SshRunner

                self._runner = SshRunner(
                    known.command or "howdah",
                    ssh_conn_id=known.ssh_conn_id,
                    environment=known.environment,
                    directory=known.working_directory,
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
            config: the configuration, given to the command as `--config -`, with the secrets of
                the installation's defaults; `policy` is applied to it and to the arguments.
            on_line: called with each line of progress; none: the task's log.
            task: names the task (dag, run, task, map index): two commands of one task never run
                at once, the second waits for the end of the first.
            grace_seconds: how long the command has for an orderly end when it is cancelled.
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
        """The same, whatever the exit code (`howdah doctor` prints its object with exit code 1)."""
        text = policy = None
        if not self.policy.trusted:
            policy = policies.to_yaml(self.policy)
        if config is not None:
            with refusals():
                text = to_yaml(left_out.put_back(config))
            arguments = [*arguments, "--config", "-"]
        handle = on_line or self._to_log
        with refusals():
            done = self.runner().run(
                arguments, config=text, policy=policy, on_line=lambda line: handle(masked(line)),
                lock=task, grace_seconds=grace_seconds,
            )  # fmt: skip
        return runners.CommandResult(done.code, masked(done.result), masked(done.tail))

    def error_of(self, arguments: Sequence[str], done: runners.CommandResult) -> dict[str, Any]:
        """The error object of a command that failed, made here if it printed none."""
        if done.code and done.result and "what" in done.result:
            return done.result
        return {
            "what": f"`howdah {arguments[0]}` ended without an answer",
            "where": self.runner().where,
            "expected": "one JSON object on stdout",
            "got": "\n".join([f"exit code {done.code}", *done.tail]),
        }

    def _to_log(self, line: str) -> None:
        self.log.info("%s", line)

    def cancel(self, seconds: float = 60.0) -> None:
        """End the running command in order; may be called from a signal handler."""
        if self._runner is not None:
            self._runner.cancel(seconds)

    # ---------------------------------------------------------------------------------- YARN
    def resource_manager(self, *, user: str | None = None, patience: float | None = None) -> Any:
        """The ResourceManager that the Connection, or else HADOOP_CONF_DIR, names.

        Args:
            user: proxied user (`run.user`).
            patience: seconds to try again while it does not answer; none: the client's default.
        Raises:
            HowdahCommandRefused: neither names one.
        """
        from howdah.hadoop import conf
        from howdah.hadoop.resourcemanager import PATIENCE_SECONDS, ResourceManager

        known = self.settings
        with refusals():
            # The environment of an edge node does not apply to this machine.
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
        """With a Kerberos ticket of the Connection's keytab, if it has one."""
        from howdah.hadoop import kerberos

        known = self.settings
        with kerberos.logged_in(known.keytab, known.principal, f"{self.conn_id}: keytab"):
            yield

    def test_connection(self) -> tuple[bool, str]:
        """For Airflow's button "Test": whether the program and the ResourceManager answer."""
        try:
            self.run(["config", "explain", "run.name", "--json"], on_line=lambda line: None)
            found = f"howdah answers on {self.runner().where}"
            if self.settings.backend == "yarn":
                with self.logged_in():
                    info = self.resource_manager(patience=5.0).info()
                found += f"; YARN {info.get('resourceManagerVersion')} is {info.get('state')}"
        except (failures.HowdahCommandFailed, HowdahError) as error:
            return False, str(error)
        return True, found


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise a HowdahError of this process as an exception of Airflow's."""
    try:
        yield
    except HowdahError as error:
        raise failures.of_error(error) from None


def masked(value: Any) -> Any:
    """The value with `***` for every secret that Airflow knows.

    Airflow masks them in the task's log file, but not where the scheduler repeats the log on its
    stdout (LocalExecutor). Keys are not looked at: `tokens` is not a secret here.
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


def _of_yarn(name: str) -> bool:
    return name.startswith("yarn.resourcemanager.")


def _airflow_home() -> str:
    return os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow"))
