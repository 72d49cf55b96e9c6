"""Where the ETL's driver runs: in this process, under a cluster's own PySpark, or on the cluster.

Whoever calls `run` sees the same in all three: progress, the result, errors as themselves; an
interrupt ends the application wherever it is.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from etl import driver, pipeline
from etl.pipeline import EtlResult
from etl.staging import sweep_until_quiet
from howdah import config as config_module
from howdah import storage
from howdah.config_model import Config
from howdah.encode import Encoder
from howdah.errors import ClusterError, ConfigError, HowdahError, NotFound, StorageError
from howdah.hadoop.kerberos import logged_in
from howdah.spark import applications, shipping
from howdah.spark.applications import Hadoop
from howdah.spark.errors import not_started, rebuilt
from howdah.spark.interrupts import interrupts
from howdah.spark.session import QUIET_LOG, require_java

Progress = Callable[[str], None]

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
    options = config.data.spark
    cluster = options.deploy_mode == "cluster"
    if shipping.on_yarn(options):
        _refuse_own_paths(config)
    elif cluster:
        raise ConfigError(
            "only YARN takes the driver into the cluster",
            where="data.spark.deploy_mode",
            expected="client, or data.spark.master: yarn",
            got=f"cluster, with master {options.master}",
            remedy="set one of them",
        )
    shipping.refuse_two_identities(config)
    home = shipping.spark_home(options)
    own = options.home is None or os.path.samefile(
        home, shipping.spark_home(options.model_copy(update={"home": None}))
    )
    with logged_in(options.keytab, options.principal, "data.spark.keytab"):
        try:
            return _run(config, home, own, cluster, progress)
        except ClusterError as error:
            if shipping.on_yarn(options):
                applications.explain(
                    error, Hadoop(spark_home=home, env=_environ(home)), config.run.user
                )
            raise


def _run(config: Config, home: str, own: bool, cluster: bool, progress: Progress) -> EtlResult:
    if own and not cluster:
        return pipeline.run(config, progress=progress)
    with interrupts():
        source, encoder, there = pipeline.prepare(config, progress)
        if there is not None:
            return there
        require_java(home)
        if not cluster:
            return _under(home, config, encoder, progress)
        _refuse_docstrings(source.kind)
        return _on_cluster(home, config, encoder, progress)


def _refuse_own_paths(config: Config) -> None:
    data = config.data
    keys = {"data.dataset": data.dataset}
    if data.source and data.format not in ("hive", "docstrings") and data.source != "docstrings:":
        keys["data.source"] = data.source
    if data.query_file and data.spark.deploy_mode == "cluster":
        keys["data.query_file"] = data.query_file
    shipping.refuse_own_paths(keys)


def _refuse_docstrings(kind: str) -> None:
    if kind == "docstrings":
        raise ConfigError(
            "the docstring corpus is made of this machine's packages",
            where="data.spark.deploy_mode",
            expected="client",
            got="cluster",
            remedy="use --deploy-mode client, or put the rows into a file on HDFS",
        )


# ---------------------------------------------------------------- a cluster's own PySpark, here
def _under(home: str, config: Config, encoder: Encoder, progress: Progress) -> EtlResult:
    """Run the driver in a process that imports the Python side of the Spark at `home`."""
    with tempfile.TemporaryDirectory(prefix="howdah-etl-") as directory:
        _describe(directory, config, encoder)
        argv = [sys.executable, "-m", driver.__name__, directory]
        # A session of its own: at a terminal Ctrl-C comes to us, and we end it in order.
        process = subprocess.Popen(
            argv, env=_environ(home, python=True), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        try:
            for line in process.stdout:
                progress(line.rstrip("\n"))
            code = process.wait()
        finally:
            _end(process)
        answer = _read(directory, driver.ANSWER)
        if answer is None:
            raise ClusterError(
                "the ETL's driver ended without an answer",
                where=f"data.spark.home {home}",
                got=f"exit code {code}",
                remedy="the lines above tell more; `howdah doctor` knows which versions fit",
            )
        return _result(answer, _read(directory, driver.STATE) or {})


def _end(process: subprocess.Popen) -> None:
    """Ask a process to end, then end its whole session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environ(home: str, *, python: bool = False) -> dict[str, str]:
    """The environment for programs of the Spark at `home`, with its Python code first if asked."""
    env = {**os.environ, "SPARK_HOME": home}
    if python:
        library = os.path.join(home, "python")
        code = library
        if not os.path.isdir(os.path.join(library, "pyspark", "sql")):
            code = os.path.join(library, "lib", "pyspark.zip")
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        paths = [code, *glob.glob(os.path.join(library, "lib", "py4j-*.zip")), root]
        env["PYTHONPATH"] = os.pathsep.join(
            [*paths, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        )
    return env


# ----------------------------------------------------------------------------- on the cluster
def _on_cluster(home: str, config: Config, encoder: Encoder, progress: Progress) -> EtlResult:
    """Submit the driver as a YARN application, show what it does, and bring its answer."""
    shipment = shipping.ship(config, "etl", progress)
    token = secrets.token_hex(6)
    directory = storage.join(storage.parent(shipment.directory), "runs", token)
    tag = f"howdah-etl-{token}"
    hadoop = Hadoop(spark_home=home, env=_environ(home))
    submitted = _Submitted(directory, progress)
    try:
        _describe(directory, config, encoder)
        storage.write_whole(storage.join(directory, "main.py"), driver.MAIN.encode())
        with _quiet(hadoop.env) as env:
            if config.run.user is not None:
                # --proxy-user acts for another; with Hadoop's own way it would be done twice
                env.pop("HADOOP_PROXY_USER", None)
                env.pop("HADOOP_USER_NAME", None)
            process = subprocess.Popen(
                _command(home, config, shipment.conf, directory, tag), env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            try:
                submitted.watch(process)
            except BaseException:
                _end_application(hadoop, submitted, process, tag, config, progress)
                raise
            finally:
                _end(process)
        answer = _read(directory, driver.ANSWER)
        ended = ("Terminated", "Interrupted")  # not by us: we would not have come here
        if answer is None or answer.get("error", {}).get("error") in ended:
            raise _no_answer(hadoop, submitted, config)
        return _result(answer, {**submitted.state, "application": submitted.application})
    finally:
        with contextlib.suppress(StorageError):
            storage.remove(directory, recursive=True)


def _command(
    home: str, config: Config, shipped: Mapping[str, str], directory: str, tag: str
) -> list[str]:
    options = config.data.spark
    conf = {
        **shipped,
        "spark.driver.memory": options.driver_memory,
        "spark.yarn.tags": f"howdah,{tag}",
        "spark.yarn.appMasterEnv." + shipping.RUN: directory,
        "spark.yarn.submit.waitAppCompletion": "true",
        # How long the driver may take to its Spark session: 100 s are too few on a busy node.
        "spark.yarn.am.waitTime": "10min",
        **options.conf,
    }
    argv = [os.path.join(home, "bin", "spark-submit"), "--master", "yarn"]
    argv += ["--deploy-mode", "cluster", "--name", "howdah etl"]
    argv += ["--proxy-user", config.run.user] if config.run.user else []
    for key, value in conf.items():
        argv += ["--conf", f"{key}={value}"]
    return [*argv, storage.join(directory, "main.py"), directory]


@contextlib.contextmanager
def _quiet(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment with log settings that show YARN's reports and errors, nothing else."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties", prefix="howdah-log4j2-") as file:
        file.write(QUIET_LOG)
        file.flush()
        options = f"-Dlog4j2.configurationFile=file://{file.name} -Dhowdah.client.level=info"
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

    def watch(self, process: subprocess.Popen) -> None:
        """Follow spark-submit and the driver until spark-submit ends."""
        reader = threading.Thread(target=self._collect, args=(process.stdout,), daemon=True)
        reader.start()
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
            self.show()
        reader.join(_END_SECONDS)
        self.show()

    def _collect(self, stream) -> None:
        for line in stream:
            self.lines = [*self.lines[-_KEPT_LINES:], line.rstrip("\n")]
            self.application = self.application or applications.application_of(line)

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
    process: subprocess.Popen,
    tag: str,
    config: Config,
    progress: Progress,
) -> None:
    """Kill what was submitted, also if its id was not told yet; remove what it had written."""
    _end(process)  # first: it might be submitting just now
    found = [submitted.application] if submitted.application else applications.tagged(hadoop, tag)
    for application in found:
        failed = applications.kill(hadoop, application)
        if failed is None:
            progress(f"killed {application}")
        else:
            progress(f"{application} could not be killed: {failed}; do: yarn application -kill it")
            return
    sweep_until_quiet(config.data.dataset, over=found)


def _no_answer(hadoop: Hadoop, submitted: _Submitted, config: Config) -> ClusterError:
    application = submitted.application
    if application is None:
        text = "\n".join(submitted.lines)
        told = RuntimeError(applications.cause(text) or text)
        return not_started(config.data.spark, config.run.user, told)
    sweep_until_quiet(config.data.dataset, over=[application])
    log = applications.logs(hadoop, application, owner=config.run.user)
    said = applications.diagnostics(submitted.lines)
    told = applications.cause(log) or applications.cause(said) or (said.splitlines() or [None])[0]
    return ClusterError(
        "the ETL's driver on the cluster was ended",
        where=application,
        got=told or "its state is " + (applications.states(submitted.lines) or ["unknown"])[-1],
        remedy=f"read its logs: yarn logs -applicationId {application}",
    )


# ------------------------------------------------------------------------------------- helpers
def _describe(directory: str, config: Config, encoder: Encoder) -> None:
    """Put what the driver needs into its directory."""
    text = config_module.dump_yaml(config)
    storage.make_dirs(directory)
    storage.write_whole(storage.join(directory, driver.CONFIG), text.encode())
    for name, data in encoder.files.items():
        storage.write_whole(storage.join(directory, driver.TOKENIZER, name), data)


def _read(directory: str, name: str) -> dict | None:
    try:
        return storage.read_json(storage.join(directory, name))
    except NotFound:
        return None


def _result(answer: dict, state: dict) -> EtlResult:
    if "error" in answer:
        raise rebuilt(answer["error"])
    result = pipeline.committed(answer["path"], unchanged=answer["unchanged"])
    return replace(result, application=state.get("application"), ui=state.get("ui"))
