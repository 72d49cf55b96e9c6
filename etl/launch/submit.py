"""Where the ETL's driver runs: in this process, under a cluster's own PySpark, or on the cluster.

The caller of `run` sees the same in all three: progress, the result, errors as themselves; an
interrupt ends the application wherever it is.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.core.child import Child
from howdah.data.inputs import AnyEncoder
from howdah.errors import ClusterError, ConfigError, HowdahError, NotFound, StorageError
from howdah.etl import pipeline
from howdah.etl.launch import driver
from howdah.etl.pipeline import EtlResult
from howdah.etl.workspace.staging import sweep_until_quiet
from howdah.hadoop.kerberos import logged_in
from howdah.packaging import cluster_paths
from howdah.packaging.staging import PRIVATE
from howdah.process import isolation
from howdah.spark import applications, connectors, properties, shipping, sizing
from howdah.spark.applications import Hadoop
from howdah.spark.errors import not_started
from howdah.spark.interrupts import interrupts
from howdah.spark.session import QUIET_LOG, require_java

_POLL_SECONDS = 1.0
_END_SECONDS = 60.0  # for a driver to stop Spark and remove its files
_KEPT_LINES = 400


def run(config: Config, *, progress: Progress) -> EtlResult:
    """`pipeline.run`, in the process and on the machine that `data.spark` asks for.

    Raises:
        ConfigError, DataError, ModelError, StorageError, ClusterError: as `pipeline.run`; also a
            cluster that refuses the application, or a container that failed, with its cause.
        Interrupted, Terminated: after SIGINT or SIGTERM; the application is killed.
    """
    config_module.require_secrets(config, "data")
    options = config.data.spark
    cluster = {"client": False, "cluster": True}[options.deploy_mode]
    if shipping.on_yarn(options):
        _refuse_local_paths(config)
    elif cluster:
        raise ConfigError(
            "only YARN takes the driver into the cluster",
            where="data.spark.deploy_mode",
            expected="client, or data.spark.master: yarn",
            got=f"cluster, with master {options.master}",
        )
    shipping.refuse_two_identities(config)
    home = shipping.spark_home(options)
    same_python = options.home is None or os.path.samefile(
        home, shipping.spark_home(options.model_copy(update={"home": None}))
    )
    with logged_in(*options.login):
        try:
            return _run(config, home, same_python, cluster, progress)
        except ClusterError as error:
            if shipping.on_yarn(options):
                applications.explain(
                    error, Hadoop(spark_home=home, env=_environ(home)), config.run.user
                )
            raise


def _run(
    config: Config, home: str, same_python: bool, cluster: bool, progress: Progress
) -> EtlResult:
    if same_python and not cluster:
        return pipeline.run(config, progress=progress)
    with interrupts():
        source, encoder, unchanged = pipeline.prepare(config, progress)
        if unchanged is not None:
            return unchanged
        require_java(home)
        if not cluster:
            return _under(home, config, encoder, progress)
        more = connectors.settings(config, progress, kind=source.kind)
        return _on_cluster(home, config, encoder, more, progress)


def _refuse_local_paths(config: Config) -> None:
    data = config.data
    keys = {"data.dataset": data.dataset}
    if data.source and not data.names_table:
        keys["data.source"] = data.source
        keys |= {f"data.split.sources.{k}": v for k, v in data.split.sources.given.items()}
    if data.query_file and data.spark.deploy_mode == "cluster":
        keys["data.query_file"] = data.query_file
    if data.format == "jdbc" and data.spark.deploy_mode == "cluster":
        if data.jdbc.url_file is None:
            raise ConfigError(
                "a driver on the cluster does not get this environment's HOWDAH_JDBC_URL",
                where="data.jdbc.url_file",
                expected="a file on HDFS that only you may read",
                remedy="name one, or set data.spark.deploy_mode to client",
            )
        keys["data.jdbc.url_file"] = data.jdbc.url_file
    cluster_paths.refuse_local(keys)


# ---------------------------------------------------------------- a cluster's own PySpark, here
def _under(home: str, config: Config, encoder: AnyEncoder, progress: Progress) -> EtlResult:
    """Run the driver in a process that imports the Python side of the Spark at `home`."""
    with tempfile.TemporaryDirectory(prefix="howdah-etl-") as directory:
        _describe(directory, config, encoder)
        argv = isolation.module(driver.__name__, directory)
        env = _environ(home, python=True)
        with _child(argv, env, progress) as driver_process:
            code = driver_process.wait()
        answer = _read(directory, driver.ANSWER)
        if answer is None:
            raise ClusterError(
                "the ETL's driver ended without an answer",
                where=f"data.spark.home {home}",
                got=f"exit code {code}",
                remedy="see the lines above; `howdah doctor` checks the versions",
            )
        return _result(answer, _read(directory, driver.STATE) or {})


def _child(argv: Sequence[str], env: Mapping[str, str], on_line: Progress) -> Child:
    """Start a driver or its spark-submit.

    At a terminal Ctrl-C reaches this process alone. It ends the child, which needs time to stop
    Spark; where this process is killed, the child goes on to its own end.
    """
    return Child(argv, env=env, on_line=on_line, grace=_END_SECONDS, death_signal=None)


def _environ(home: str, *, python: bool = False) -> dict[str, str]:
    """The environment for programs of the Spark at `home`, with its Python code first if asked."""
    env = {**os.environ, "SPARK_HOME": home}
    env.pop("PYTHONPATH", None)  # Spark would pass it on to the application's containers
    if python:
        library = os.path.join(home, "python")
        code = library
        if not os.path.isdir(os.path.join(library, "pyspark", "sql")):
            code = os.path.join(library, "lib", "pyspark.zip")
        first = [code, *glob.glob(os.path.join(glob.escape(library), "lib", "py4j-*.zip"))]
        return isolation.environment(env, first=first)
    return env


# ----------------------------------------------------------------------------- on the cluster
def _on_cluster(
    home: str, config: Config, encoder: AnyEncoder, more: Mapping[str, str], progress: Progress
) -> EtlResult:
    """Submit the driver as a YARN application, show what it does, and bring its answer.

    Args:
        more: settings of the source's format.
    """
    shipment = shipping.ship(config, "etl", progress)
    token = secrets.token_hex(6)
    directory = storage.join(shipment.staging.directory, "runs", token)
    tag = f"howdah-etl-{token}"
    hadoop = Hadoop(spark_home=home, env=_environ(home))
    submitted = _Submitted(directory, progress)
    try:
        _describe(directory, config, encoder)
        # Elsewhere the owners of files are not the names that YARN has for users.
        owner = storage.entry(directory).owner if storage.on_hdfs(directory) else None
        storage.write_whole(storage.join(directory, "main.py"), driver.MAIN.encode())
        with _quiet(hadoop.env) as env:
            if config.run.user is not None:
                # --proxy-user acts for another; with Hadoop's own way it would be done twice
                env.pop("HADOOP_PROXY_USER", None)
                env.pop("HADOOP_USER_NAME", None)
            shipped = {**shipment.conf, **sizing.executor_overhead(config.data.spark), **more}
            with _settings_file(home, config, shipped, directory, tag) as settings:
                argv = _command(home, config, settings, directory)
                with _child(argv, env, submitted.collect) as spark_submit:
                    try:
                        submitted.watch(spark_submit)
                    except BaseException:
                        spark_submit.end()  # first: it might be submitting just now
                        _end_application(hadoop, submitted, tag, owner, config, progress)
                        raise
        answer = _read(directory, driver.ANSWER)
        ended = ("Terminated", "Interrupted")  # not by us: we would not have come here
        if answer is None or answer.get("error", {}).get("error") in ended:
            raise _no_answer(hadoop, submitted, config)
        try:
            return _result(answer, {**submitted.state, "application": submitted.application})
        except ClusterError as error:
            _of_application(error, hadoop, submitted, config)
            raise
    finally:
        with contextlib.suppress(StorageError):
            storage.remove(directory, recursive=True)


def _settings_file(
    home: str, config: Config, shipped: Mapping[str, str], directory: str, tag: str
) -> contextlib.AbstractContextManager[str]:
    """The settings for spark-submit, which every user of this machine could read as arguments."""
    options = config.data.spark
    conf = {
        **shipped,
        "spark.driver.memory": options.driver_memory,
        "spark.yarn.tags": f"howdah,{tag}",
        "spark.yarn.appMasterEnv." + shipping.RUN: directory,
        "spark.yarn.submit.waitAppCompletion": "true",
        # How long the driver may take to its Spark session: 100 s are too few on a busy node.
        "spark.yarn.am.waitTime": "10min",
    }
    conf = connectors.joined(conf, options.conf)
    defaults = properties.defaults_of(home, os.environ)
    conf = properties.in_utc(properties.redacting(conf, defaults), defaults)
    return properties.written(conf, defaults)


def _command(home: str, config: Config, settings: str, directory: str) -> list[str]:
    argv = [os.path.join(home, "bin", "spark-submit"), "--master", "yarn"]
    argv += ["--deploy-mode", "cluster", "--name", "howdah etl"]
    argv += ["--proxy-user", config.run.user] if config.run.user else []
    argv += ["--properties-file", settings]
    return [*argv, storage.join(directory, "main.py"), directory]


@contextlib.contextmanager
def _quiet(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment with log settings that show YARN's reports and errors, nothing else."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties", prefix="howdah-log4j2-") as file:
        file.write(QUIET_LOG)
        file.flush()
        # As a URI: a blank in TMPDIR would end the option.
        options = f"-Dlog4j2.configurationFile={Path(file.name).as_uri()}"
        options += " -Dhowdah.client.level=info"
        yield {**env, "SPARK_SUBMIT_OPTS": f"{env.get('SPARK_SUBMIT_OPTS', '')} {options}".strip()}


class _Submitted:
    """What is known of a submitted application: its id, its reports, its driver's state."""

    def __init__(self, directory: str, progress: Progress) -> None:
        self.application: str | None = None
        self.state: dict = {}
        self.lines: list[str] = []
        self._directory = directory
        self._progress = progress
        self._shown = 0
        self._reported: list[str] = []

    def collect(self, line: str) -> None:
        """Keep a line of spark-submit's output; called by the thread that reads it."""
        self.lines = [*self.lines[-_KEPT_LINES:], line]
        self.application = self.application or applications.application_of(line)

    def watch(self, spark_submit: Child) -> None:
        """Follow spark-submit and the driver until spark-submit ends."""
        while spark_submit.alive:
            spark_submit.wait(_POLL_SECONDS)
            self.show()
        spark_submit.read_rest()
        self.show()

    def show(self) -> None:
        """Hand on what is new: the id, changes of YARN's state, the driver's lines."""
        if self.application and not self._reported:
            self._progress(f"submitted {self.application}")
            self._reported.append("")
        for state in applications.states(self.lines):
            if state not in self._reported:
                self._reported.append(state)
                self._progress(f"{self.application} is {state}")
        # Storage that does not answer now does so at the next turn.
        with contextlib.suppress(HowdahError):
            self.state = _read(self._directory, driver.STATE) or self.state
        for line in self.state.get("lines", [])[self._shown :]:
            self._progress(line)
            self._shown += 1


def _end_application(
    hadoop: Hadoop,
    submitted: _Submitted,
    tag: str,
    owner: str | None,
    config: Config,
    progress: Progress,
) -> None:
    """Kill what was submitted, found by its tag if its id is not known; remove what it had written.

    Args:
        owner: this user's name on the cluster; any user may set the same tag.
    """
    ids = [submitted.application] if submitted.application else []
    ids = ids or applications.tagged(hadoop, tag, owner)
    for application in ids:
        failed = applications.kill(hadoop, application)
        if failed is None:
            progress(f"killed {application}")
        else:
            remedy = f"yarn application -kill {application}"
            progress(f"{application} could not be killed: {failed}; run: {remedy}")
            return
    sweep_until_quiet(config.data.dataset, over=ids)


def _no_answer(hadoop: Hadoop, submitted: _Submitted, config: Config) -> ClusterError:
    application = submitted.application
    if application is None:
        text = "\n".join(submitted.lines)
        refused = RuntimeError(applications.cause(text) or text)
        return not_started(config.data.spark, config.run.user, refused)
    sweep_until_quiet(config.data.dataset, over=[application])
    return ClusterError(
        "the ETL's driver on the cluster was ended",
        where=application,
        got=_cause(hadoop, submitted, config)
        or "its state is " + (applications.states(submitted.lines) or ["unknown"])[-1],
        remedy=f"read its logs: yarn logs -applicationId {application}",
    )


def _of_application(
    error: ClusterError, hadoop: Hadoop, submitted: _Submitted, config: Config
) -> None:
    """Complete a driver's own error by what is known here alone; remove what its run left.

    When the ApplicationMaster (Spark's JVM) is killed, its Python program has lost its container
    but may live long enough to answer that the JVM is gone: not why, and its cleanup is cut short.
    """
    application = submitted.application
    if application is None:
        return
    sweep_until_quiet(config.data.dataset, over=[application])
    if error.where is not None:
        return
    error.where = application
    cause = _cause(hadoop, submitted, config)
    if cause is not None and cause not in (error.got or ""):
        error.got = "\n".join(filter(None, [error.got, f"{application} says: {cause}"]))
    log = f"yarn logs -applicationId {application}"
    error.remedy = f"{error.remedy}; {log}" if error.remedy else f"read its logs: {log}"


def _cause(hadoop: Hadoop, submitted: _Submitted, config: Config) -> str | None:
    """Why an application that is over has failed: by its containers' logs, else by YARN."""
    log = applications.logs(hadoop, submitted.application, owner=config.run.user)
    diagnostics = applications.diagnostics(submitted.lines)
    return (
        applications.cause(log)
        or applications.cause(diagnostics)
        or (diagnostics.splitlines() or [None])[0]
    )


# ------------------------------------------------------------------------------------- helpers
def _describe(directory: str, config: Config, encoder: AnyEncoder) -> None:
    """Put what the driver needs into its directory."""
    text = config_module.dump_yaml(config)
    storage.make_dirs(directory, mode=PRIVATE)  # Spark's settings may hold secrets
    storage.write_whole(storage.join(directory, driver.CONFIG), text.encode(), mode=0o600)
    for name, data in encoder.files.items():
        storage.write_whole(storage.join(directory, driver.TOKENIZER, name), data)


def _read(directory: str, name: str) -> dict | None:
    try:
        return storage.read_json(storage.join(directory, name))
    except NotFound:
        return None


def _result(answer: dict, state: dict) -> EtlResult:
    if "error" in answer:
        raise HowdahError.from_dict(answer["error"])
    result = pipeline.committed(answer["path"], unchanged=answer["unchanged"])
    return replace(result, application=state.get("application"), ui=state.get("ui"))
