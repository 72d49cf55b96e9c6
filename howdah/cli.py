"""`howdah ...`: the command line.

One of the two composition roots: it imports etl, training and yarn, lazily and inside functions,
so that `howdah --help` starts without a framework. Progress goes to stderr; with --json exactly
one JSON object goes to stdout.
"""

from __future__ import annotations

import json as _json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from howdah import __version__
from howdah.errors import HowdahError, Interrupted, UsageError, as_dict, render

app = typer.Typer(
    name="howdah",
    help="From text rows or a Hive table to a trained DistilBERT classifier.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(
    help="Write, check and explain the run configuration.", no_args_is_help=True
)
app.add_typer(config_app, name="config")
minicluster_app = typer.Typer(
    help="Real HDFS and YARN daemons on this machine's loopback, for trials and tests.",
    no_args_is_help=True,
)
app.add_typer(minicluster_app, name="minicluster")

ConfigPath = Annotated[
    str | None, typer.Option("--config", "-c", help="Run configuration (YAML, any storage).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be given several times.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _answer(value: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """The command's result: one JSON object, or lines for people."""
    if as_json:
        print(_json.dumps(value, ensure_ascii=False))
    else:
        for line in lines:
            print(line)


def _load(path: str | None, overrides: list[str] | None):
    from howdah import config, storage

    checked = config.load(path, overrides or [])
    storage.configure(retry_seconds=checked.run.storage_retry_seconds, user=checked.run.user)
    return checked


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"howdah {__version__}")
        raise typer.Exit()


# ------------------------------------------------------------------------------------ doctor
@app.command()
def doctor(json: AsJson = False) -> None:
    """Check this machine: Python, Java, MPI, Horovod, memory, disk, ports, Hadoop's settings."""
    from howdah.doctor import doctor as check

    raise typer.Exit(check(json=json))


# ------------------------------------------------------------------------------------ config
@config_app.command("init")
def config_init(
    path: Annotated[str | None, typer.Argument(help="File to write; none: stdout.")] = None,
) -> None:
    """Write a configuration to start from."""
    from howdah import config, storage

    text = config.starter_yaml()
    if path is None:
        print(text, end="")
        return
    storage.create_exclusive(path, text.encode())
    _say(f"written: {path}")


@config_app.command("explain")
def config_explain(
    key: Annotated[str, typer.Argument(help="section.key, a section, or a key's bare name.")],
    json: AsJson = False,
) -> None:
    """Tell what a key means, what it takes and its default."""
    from howdah import config

    found = config.explain(key)
    lines = []
    for item in found:
        default = "required" if item["required"] else f"default: {_json.dumps(item['default'])}"
        lines += [f"{item['key']}: {item['type']} ({default})", f"    {item['help']}"]
    _answer({"keys": found}, json, lines)


@config_app.command("check")
def config_check(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Check a configuration and print it whole, defaults included."""
    from howdah.config import dump_yaml

    checked = _load(config, set)
    _answer(checked.model_dump(mode="json"), json, [dump_yaml(checked).rstrip()])


# --------------------------------------------------------------------------------------- etl
@app.command()
def etl(
    config: ConfigPath = None,
    set: Overrides = None,
    source: Annotated[str | None, typer.Option(help="Overrides data.source.")] = None,
    master: Annotated[str | None, typer.Option(help="Overrides data.spark.master.")] = None,
    deploy_mode: Annotated[
        str | None, typer.Option(help="client or cluster (data.spark.deploy_mode).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Clean, de-duplicate, split and tokenise the source into TFRecord shards with a manifest."""
    overrides = list(set or [])
    if source is not None:
        overrides.append(f"data.source={_json.dumps(source)}")
    if master is not None:
        overrides.append(f"data.spark.master={_json.dumps(master)}")
    if deploy_mode is not None:
        overrides.append(f"data.spark.deploy_mode={_json.dumps(deploy_mode)}")
    checked = _load(config, overrides)
    from etl.submit import run

    result = run(checked, progress=_say)
    answer = result.as_dict()
    splits = answer["rows"]
    state = "unchanged" if result.unchanged else "written"
    _answer(
        answer,
        json,
        [
            f"dataset {state}: {result.path}",
            "rows: " + ", ".join(f"{split} {rows:,}" for split, rows in splits.items()),
            f"report: {result.report_path}",
        ],
    )


@app.command()
def package(
    kind: Annotated[str, typer.Option(help="What runs in it: etl, tensorflow or torch.")] = "etl",
    output: Annotated[
        str | None, typer.Option(help="Directory (any storage); none: the local cache.")
    ] = None,
    horovod: Annotated[
        str | None,
        typer.Option(help="Horovod wheel without MPI for the framework; none: found or built."),
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option("--with", help="One more package to take in; repeatable.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Pack the wheel and a relocatable Python environment, each named by its hash."""
    from howdah import package as packages
    from howdah import storage

    local = output if output is None or storage.is_local(output) else None
    started = time.monotonic()
    environment = packages.environment(
        kind, local, progress=_say, horovod=horovod, extra=extra or []
    )
    made = [packages.wheel(local), environment]
    places = [item.path for item in made]
    if output is not None and local is None:
        places = [packages.publish(item, output, progress=_say) for item in made]
    answer = [{**item.as_dict(), "path": path} for item, path in zip(made, places, strict=True)]
    seconds = round(time.monotonic() - started, 1)
    _answer(
        {"wheel": answer[0], "environment": answer[1], "seconds": seconds},
        json,
        [
            *(f"{item['path']}  {item['bytes'] / 2**20:,.1f} MiB" for item in answer),
            f"runs on x86-64 with glibc {environment.glibc} or newer; made in {seconds} s",
        ],
    )


# ------------------------------------------------------------------------------------- train
@app.command()
def plan(
    config: ConfigPath = None,
    set: Overrides = None,
    np: Annotated[int, typer.Option("--np", min=1, help="Ranks.")] = 1,
    workers: Annotated[
        str | None,
        typer.Option(help="Predict these worlds: 8,64,512 (measures a few real steps here first)."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Link between nodes, bits a second: 25G (default 10G).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a training run would do: rows, steps, tokens, padding; and how it would scale."""
    from training.preview import preview, scaling_lines, scaling_preview

    checked = _load(config, set)
    summary = preview(checked, world=np)
    lines = [f"{key + ':':<28}{value}" for key, value in summary.items()]
    if workers is not None or network is not None:
        found = scaling_preview(checked, workers or "2,4,8,16", network or "10G", progress=_say)
        lines += ["", *scaling_lines(found)]
        summary = {**summary, "scaling": found}
    _answer(summary, json, lines)


@app.command()
def train(
    config: ConfigPath = None,
    set: Overrides = None,
    np: Annotated[int, typer.Option("--np", min=1, help="Ranks on this machine.")] = 1,
    launcher: Annotated[str, typer.Option(help="mpirun or horovodrun.")] = "mpirun",
    resume: Annotated[
        str | None, typer.Option(help="auto, never, or a checkpoint (checkpoint.resume).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Train on this machine with Horovod; the command that it runs is shown."""
    if launcher not in ("mpirun", "horovodrun"):
        raise UsageError(
            "unknown launcher", where="--launcher", expected="mpirun or horovodrun", got=launcher
        )
    overrides = list(set or [])
    if resume is not None:
        overrides.append(f"checkpoint.resume={_json.dumps(resume)}")
    checked = _load(config, overrides)
    from training.launch import train as launch

    raise typer.Exit(launch(checked, np=np, launcher=launcher, json=json))


@app.command()
def evaluate(
    config: ConfigPath = None,
    set: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help="Export or run directory; none: the configuration's run.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    gate: Annotated[bool, typer.Option(help="Hold the metrics against `gate`; exit 1.")] = False,
    json: AsJson = False,
) -> None:
    """Evaluate a trained model on a split of the dataset."""
    from training.evaluate import check_gate, evaluate_run

    checked = _load(config, set)
    metrics = evaluate_run(checked, model=model, split=split, progress=_say)
    # The gate speaks first: a refusal is the one JSON object, with the metrics in its message.
    if gate:
        check_gate(checked.gate, metrics, split=split)
        _say("gate: passed")
    lines = [f"{key}: {value:.4f}" for key, value in metrics.items() if isinstance(value, float)]
    _answer({"split": split, "metrics": metrics}, json, lines)


@app.command()
def export(
    config: ConfigPath = None,
    set: Overrides = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint; none: the best one, else the last.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Directory; none: <run>/export.")] = None,
    json: AsJson = False,
) -> None:
    """Write a Hugging Face directory from a checkpoint of the configuration's run."""
    from training.export import export_run

    path = export_run(_load(config, set), checkpoint=checkpoint, output=output)
    _answer({"export": path}, json, [f"export: {path}"])


@app.command()
def predict(
    model: Annotated[str, typer.Option(help="Export or run directory (any storage).")],
    source: Annotated[str | None, typer.Option(help="CSV, JSON lines or Parquet file(s).")] = None,
    output: Annotated[
        str | None, typer.Option(help=".parquet, .jsonl or .csv file, or table:NAME (Hive).")
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="One text a line, JSON lines out.")
    ] = False,
    text_column: Annotated[
        list[str] | None,
        typer.Option(help="Column(s) of the text; none: those it was trained on."),
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the row's key.")] = None,
    master: Annotated[str | None, typer.Option(help="Run on this Spark master.")] = None,
    json: AsJson = False,
) -> None:
    """Classify texts: id, label, scores and the run id of the model."""
    from training import predict as predictor

    if stdin:
        if source is not None or output is not None:
            raise UsageError(
                "--stdin reads stdin and writes stdout", remedy="leave out --source/--output"
            )
        predictor.predict_lines(model, sys.stdin, sys.stdout)
        return
    if source is None or output is None:
        raise UsageError("predict needs --source and --output, or --stdin")
    summary = predictor.predict(
        model, source, output,
        text_columns=text_column, id_column=id_column, master=master, progress=_say,
    )  # fmt: skip
    _answer(summary, json, [f"{summary['rows']:,} rows -> {output}"])


# -------------------------------------------------------------------------------------- yarn
Job = Annotated[
    str | None, typer.Argument(metavar="[APPLICATION]", help="Its id; none: that of --config.")
]


def _yarn(config: str | None, overrides: list[str] | None = None):
    """The cluster's ResourceManager, and the configuration if one is given."""
    from howdah.hadoop.resourcemanager import ResourceManager

    checked = _load(config, overrides) if config is not None or overrides else None
    return ResourceManager(user=checked.run.user if checked else None), checked


@app.command()
def submit(
    config: ConfigPath = None,
    set: Overrides = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; Ctrl-C ends it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and print what would be asked of YARN.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Submit a training job to YARN: its id, where to look, how to follow it."""
    from yarn import submit as submission

    checked = _load(config, set)
    if dry_run:
        told = submission.dry_run(checked, _say)
        _answer(told, json, submission.lines(told))
        return
    found = submission.submit(checked, _say)
    if wait:
        _say(f"submitted {found.application}: {found.tracking_url}")
        told = submission.follow(checked, found, _say)
        _answer({**found.as_dict(), "status": told}, json, [f"{found.application} succeeded"])
        return
    lines = [found.application, f"page: {found.tracking_url}", f"follow it: {found.follow}"]
    _answer(found.as_dict(), json, lines)


@app.command()
def status(
    application: Job = None, config: ConfigPath = None, set: Overrides = None, json: AsJson = False
) -> None:
    """Show a job on YARN: state, ranks, step, loss, time left, last checkpoint, restarts."""
    from yarn import watch

    manager, checked = _yarn(config, set)
    told = watch.status(manager, watch.find(manager, application, checked))
    _answer(told, json, watch.status_lines(told))


@app.command()
def logs(
    application: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank's.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends (rank 0, or --rank).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the logs of a job on YARN: of all its containers, or of one rank."""
    from yarn import logs as joblogs
    from yarn import watch

    manager, checked = _yarn(config, set)
    job = watch.find(manager, application, checked)
    if follow or rank is not None:
        joblogs.of_rank(manager, job, rank or 0, follow=follow, out=_log_line(json))
        return
    found = joblogs.of_containers(manager, job, progress=_say)
    _answer({"application": job.application, "logs": found}, json, joblogs.lines(found))


def _log_line(as_json: bool) -> Callable[[str], None]:
    if as_json:
        raise UsageError("a rank's log is text", remedy="leave out --json, or --rank and --follow")
    return lambda line: print(line, flush=True)


@app.command()
def kill(
    application: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    save: Annotated[bool, typer.Option("--save", help="Save a checkpoint first.")] = False,
    save_seconds: Annotated[float, typer.Option(min=1, help="How long saving may take.")] = 120.0,
    json: AsJson = False,
) -> None:
    """End a job on YARN; told when YARN has confirmed it."""
    from yarn import steer, watch

    manager, checked = _yarn(config, set)
    job = watch.find(manager, application, checked)
    state = steer.kill(manager, job, save=save, save_seconds=save_seconds, progress=_say)
    _answer(
        {"application": job.application, "state": state}, json, [f"{job.application} is {state}"]
    )


@app.command()
def scale(
    words: Annotated[
        list[str], typer.Argument(metavar="[APPLICATION] WORKERS", help="How many workers.")
    ],
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Ask an elastic job for another number of workers."""
    from yarn import steer, watch

    application, workers = steer.scale_words(words)
    manager, checked = _yarn(config, set)
    job = watch.find(manager, application, checked)
    steer.scale(manager, job, workers)
    _answer(
        {"application": job.application, "workers": workers}, json,
        [f"{job.application} was asked for {workers} workers"],
    )  # fmt: skip


@app.command()
def ps(
    all_users: Annotated[bool, typer.Option("--all-users", help="Everybody's.")] = False,
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Those that are over as well.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List Howdah's jobs on YARN."""
    from yarn import watch

    manager, _ = _yarn(None)
    user = None if all_users else watch.oneself(manager)
    found = watch.jobs(manager, user=user, finished=all_states)
    _answer({"jobs": found}, json, watch.ps_lines(found))


# ------------------------------------------------------------------------------- minicluster
ClusterDirectory = Annotated[
    str, typer.Option("--directory", "-d", help="Where everything of the cluster lies.")
]
CLUSTER_DIRECTORY = "build/minicluster"


@minicluster_app.command("start")
def minicluster_start(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    kerberos: Annotated[bool, typer.Option("--kerberos", help="With a Kerberos realm.")] = False,
    metastore: Annotated[
        bool, typer.Option("--metastore", help="With a Hive metastore (PySpark's).")
    ] = False,
    port: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PORT, such as namenode=8020; the others are chosen free."),
    ] = None,
    node_memory: Annotated[
        int, typer.Option(min=512, help="MiB that each of the two NodeManagers offers.")
    ] = 6144,
    node_gpus: Annotated[
        int, typer.Option(min=0, help="GPUs that each NodeManager offers (counted, not isolated).")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Start a cluster and leave it running; one that runs in the directory already is used."""
    from yarn.minicluster import command

    told = command.start(
        directory, secure=kerberos, with_metastore=metastore, ports=port or [],
        node_memory_mb=node_memory, node_gpus=node_gpus, say=_say,
    )  # fmt: skip
    _answer(told, json, command.start_lines(told))


@minicluster_app.command("stop")
def minicluster_stop(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the directory too.")] = False,
    json: AsJson = False,
) -> None:
    """End every daemon and container of a cluster; its data is kept unless --remove."""
    from yarn.minicluster import command

    told = command.end(directory, remove=remove)
    state = "stopped" if told["was_running"] else "nothing was running"
    _answer(told, json, [f"mini cluster {state}: {told['directory']}"])


@minicluster_app.command("status")
def minicluster_status(
    directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False
) -> None:
    """Show each daemon's state, process and ports; exit code 1 where one does not run well."""
    from yarn.minicluster import MiniCluster, command

    told = MiniCluster(directory).status()
    _answer(told, json, command.state_lines(told))
    raise typer.Exit(0 if command.all_well(told) else 1)


@minicluster_app.command("env")
def minicluster_env(directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False) -> None:
    """Print what a shell needs: eval "$(howdah minicluster env)"; hdfs dfs -ls /"""
    from yarn.minicluster import MiniCluster, command

    cluster = MiniCluster(directory)
    environment = {key: cluster.env[key] for key in cluster.exports()}
    _answer(environment, json, command.export_lines(cluster))


@minicluster_app.command("logs")
def minicluster_logs(
    daemon: Annotated[str | None, typer.Argument(help="A daemon; none: the names of all.")] = None,
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many.")] = 50,
    json: AsJson = False,
) -> None:
    """Show the end of a daemon's log, or where all logs are. Containers' logs: yarn logs."""
    from yarn.minicluster import MiniCluster, command

    cluster = MiniCluster(directory)
    if daemon is None:
        logs = cluster.logs()
        _answer(logs, json, [f"{name:<16} {path}" for name, path in logs.items()])
        return
    found = command.log_lines(cluster, daemon, lines)
    _answer({"daemon": daemon, "path": cluster.logs()[daemon], "lines": found}, json, found)


# -------------------------------------------------------------------------------------- main
def _terminate(signum: int, frame: object) -> None:
    from howdah.errors import Terminated

    raise Terminated("asked to end (SIGTERM)")


def run(call: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run a command; what is the user's to mend becomes one message and an exit code."""
    try:
        result = call()
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        error: HowdahError = Interrupted("interrupted")
    except HowdahError as caught:
        error = caught
    if as_json:
        print(_json.dumps(as_dict(error), ensure_ascii=False))
    _say(f"howdah: {render(error)}")
    return error.exit_code


def main() -> None:
    """Entry point of the `howdah` script."""
    signal.signal(signal.SIGTERM, _terminate)

    def call() -> int:
        try:
            return app(standalone_mode=False) or 0
        except typer.Abort:
            raise Interrupted("interrupted") from None
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "howdah"
            if type(error).__name__ == "NoArgsIsHelpError":  # the help is on stdout by now
                return 2
            text = error.format_message() if hasattr(error, "format_message") else str(error)
            raise UsageError(
                text.strip(), remedy=f"`{command} --help` shows what it takes"
            ) from None

    code = run(call, as_json="--json" in sys.argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (| head): nothing is lost that anyone wants
        sys.stderr.close()
        code = code or 0
    sys.exit(code)


if __name__ == "__main__":
    main()
