"""The commands of applications, on any cluster: submit, status, logs, kill, scale, ps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howdah import storage
from howdah.cli import streams
from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    allowed,
    answer,
    chosen,
    load,
    note_command,
    pinned,
    say,
    typed,
)
from howdah.core.terminal import shown
from howdah.errors import (
    ClusterError,
    HowdahError,
    NotFound,
    PermissionDenied,
    StorageError,
    UsageError,
)

if TYPE_CHECKING:
    from howdah.config.model import Config

app = typer.Typer()

_ID = re.compile(r"(application_|local-|spark-|ray-)[0-9a-f_-]+$")

Job = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Job id, run directory or served model; default: the run directory of --config.",
    ),
]


# ------------------------------------------------------------------- clusters and applications
def cluster_of(name: str, config: Config, *, etl: bool = False) -> Any:
    """A cluster (jobs/cluster.py) for a configuration.

    Args:
        name: yarn, local, spark or ray.
        etl: a job there makes its dataset first.
    Raises:
        UsageError: `etl` on another cluster than Spark.
    """
    if etl and name != "spark":
        raise UsageError(
            "--etl makes the dataset in the Spark application that then trains", where="--etl",
            expected="--on spark", got=f"--on {name}",
            remedy="run `howdah etl` first, and submit without --etl",
        )  # fmt: skip
    if name == "yarn":
        from howdah.yarn.cluster import YarnCluster

        return YarnCluster(config, lambda: _tokens(config))
    from howdah.jobs.clusters.clusters import class_of

    return class_of(name)(config, etl=etl)


def _tokens(config: Config) -> list[bytes]:
    from howdah.serving.http import access

    return access.tokens(config.serve.token_file)


def _is_id(text: str) -> bool:
    """True for an application's id; otherwise it is a path or a model's name."""
    return _ID.match(text) is not None


def find(job: str | None, config: Config | None) -> Any:
    """The application (jobs/application.py) of an id, of a directory, or of a configuration.

    Args:
        job: an id, a run directory, a served model's directory, or its name below the
            configuration's publish.directory; None: the configuration's run directory.
    Raises:
        NotFound: there is none.
        UsageError: neither is given.
    """
    from howdah.config import loader
    from howdah.jobs import record

    settings = config or loader.from_dict({})
    if job is None:
        if config is None:
            raise UsageError(
                "no job is named", expected="an application's id, a run directory, or --config",
                remedy="howdah ps --all lists jobs",
            )  # fmt: skip
        return _of_configuration(config)
    if _is_id(job):
        submitted = None
        with contextlib.suppress(PermissionDenied):  # of another user's run YARN tells the state
            submitted = None if config is None else record.read(config.run.directory)
        if submitted is not None and submitted.application == job:
            return cluster_of(submitted.on, settings).application(submitted)
        name = "yarn" if job.startswith("application_") else job.partition("-")[0]
        application = cluster_of(name, settings).by_id(job)
        if application is not None:
            if application.directory is None and config is not None:
                application.directory = config.run.directory
            return application
    directories = [storage.local_path(job) if storage.is_local(job) else job]
    if config is not None and "://" not in job:
        directories.append(storage.join(config.publish.directory, job))
    for directory in directories:
        submitted = record.read(directory)
        if submitted is not None and submitted.application:
            return cluster_of(submitted.on, settings).application(submitted)
    raise NotFound(
        "no job has this id or run directory", where=job,
        expected="an id (application_..., local-..., spark-..., ray-...), or run.directory",
        remedy="howdah ps --all lists jobs",
    )  # fmt: skip


def _of_configuration(config: Config) -> Any:
    from howdah.jobs import record

    directory = config.run.directory
    submitted = record.read(directory)
    if submitted is not None and submitted.application:
        return cluster_of(submitted.on, config).application(submitted)
    on = config.job.on if submitted is None else submitted.on
    application = cluster_of(on, config).in_directory(submitted)
    if application is not None:
        return application
    raise NotFound(
        "no job was submitted to this run directory", where=directory,
        remedy=f"howdah submit --on {config.job.on} --config ...",
    )  # fmt: skip


def _find(job: str | None, config: str | None, overrides: list[str] | None) -> Any:
    return find(job, _checked(job, config, overrides))


def _checked(job: str | None, config: str | None, overrides: list[str] | None) -> Config | None:
    """The configuration that a command about a job names, if the policies allow both."""
    if job is not None and not _is_id(job):
        allowed(("JOB", "path", job))
    return load(config, overrides) if config is not None or overrides else None


@app.command()
def submit(
    config: ConfigPath = None,
    set: Overrides = None,
    on: Annotated[
        str | None, typer.Option("--on", help="yarn, local, spark or ray; default: job.on.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the job until it ends; Ctrl-C ends it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the request; submit nothing.")
    ] = False,
    etl: Annotated[
        bool,
        typer.Option("--etl", help="With --on spark: make the dataset first, in the same job."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Submit a training job to YARN, this machine, Spark or Ray; print its id and how to follow."""
    overrides = [*(set or []), *([] if on is None else [f"job.on={on}"])]
    checked = pinned(
        load(chosen(config, set), overrides), lambda c: c.yarn if c.job.on == "yarn" else None
    )
    note_command()
    cluster = cluster_of(checked.job.on, checked, etl=etl)
    if not dry_run:
        from howdah.models.runs import settings

        with cluster.session():  # refused if it would be described by settings it did not have
            done = settings.already_finished(checked)
        if done is not None and not etl and not cluster.submits_finished:
            answer(settings.of_finished(checked, on=checked.job.on), json, done)
            return
    submit_to(cluster, wait, dry_run, json, typed("publish", config, set))


def submit_to(
    cluster: Any, wait: bool = False, dry_run: bool = False, json: bool = False, publish: str = ""
) -> None:
    """Submit what the cluster was made for, and answer with it.

    Args:
        publish: the command that publishes a training job's run.
    """
    from howdah.jobs import submit as submission

    if dry_run:
        plan = submission.dry_run(cluster, say)
        answer(plan, json, cluster.plan_lines(plan))
        return
    made = submission.submit(cluster, say, lambda name: cluster_of(name, cluster.config))
    application = made.application
    if wait:
        seconds = cluster.config.checkpoint.grace_seconds
        final = application.follow(seconds, say, page=made.page)
        from howdah.cli.training import judgement

        with cluster.session():
            result, lines = judgement.conclude(cluster.config, publish)
        result |= {**made.as_dict(), "status": final}
        answer(result, json, [f"{application.id} succeeded", *lines])
        return
    page = [f"page: {made.page}"] if made.page else []  # none yet while the dataset is made
    answer(made.as_dict(), json, [application.id, *page, f"follow it: {made.follow}"])


@app.command()
def status(
    job: Job = None, config: ConfigPath = None, set: Overrides = None, json: AsJson = False
) -> None:
    """Show a job: state, ranks, step, loss, time left, last checkpoint, restarts."""
    checked = _checked(job, config, set)
    trained = _of_train(job, checked)
    if trained is not None:
        from howdah.training.run.status import lines

        answer(trained, json, lines(trained))
        return
    from howdah.jobs.status.text import status_lines

    status = find(job, checked).status()
    answer(status, json, status_lines(status))


def _of_train(job: str | None, config: Config | None) -> Any:
    """The status of a run directory that no job has, or none any more; None: a job has it, or it is
    not a run."""
    from howdah.jobs import record
    from howdah.training.run.status import run_status

    if job is not None and _is_id(job):
        return None
    directory = job or (config and config.run.directory)
    if directory is None:
        return None
    submitted = record.read(directory)
    if submitted is None or _continued_by_train(directory, submitted.submitted):
        return run_status(directory)
    return None


def _continued_by_train(directory: str, submitted: float) -> bool:
    """True if the run's newest attempt is a `howdah train`'s, after the job was submitted."""
    from howdah.models.runs import record

    try:
        attempt = (record.read(directory).get("attempts") or [{}])[-1]
    except NotFound:
        return False
    started = None if attempt.get("submission") else attempt.get("started")
    return bool(started) and datetime.fromisoformat(started).timestamp() > submitted


@app.command()
def logs(
    job: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank whose log to show.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job ends (rank 0, or --rank).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the logs of a job: of all its containers, or of one rank."""
    from howdah.jobs.status.text import log_lines

    application = _find(job, config, set)
    if follow or rank is not None:
        application.rank_log(rank or 0, follow=follow, out=_log_line(json))
        return
    logs = application.container_logs(say)
    answer({"application": application.id, "logs": logs}, json, log_lines(logs))


def _log_line(as_json: bool) -> Callable[[str], None]:
    if as_json:
        raise UsageError("a rank's log is text", remedy="leave out --json, or --rank and --follow")
    out = streams.results()
    return lambda line: print(shown(line), file=out, flush=True)


@app.command()
def kill(
    job: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    save: Annotated[bool, typer.Option("--save", help="Save a checkpoint first.")] = False,
    save_seconds: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for it to save.")
    ] = 120.0,
    json: AsJson = False,
) -> None:
    """End a job or a server, and wait until it has ended."""
    checked = _checked(job, config, set)
    trained = _of_train(job, checked)
    if trained is not None and trained["state"] == "RUNNING":
        raise UsageError(
            "this run directory belongs to a `howdah train`, not to a job",
            where=trained["run_directory"],
            got=f"attempt {trained['attempt']} on {trained['host']}",
            remedy="end that command: Ctrl-C in its terminal, or SIGTERM to it",
        )
    application = find(job, checked)
    state = application.kill(save=save, save_seconds=save_seconds, progress=say)
    answer({"application": application.id, "state": state}, json, [f"{application.id} is {state}"])


@app.command()
def scale(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[JOB] WORKERS", help="New number of workers.")
    ],
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Change the number of workers of an elastic job."""
    job, workers = _scale_arguments(arguments)
    application = _find(job, config, set)
    application.scale(workers)
    answer(
        {"application": application.id, "workers": workers}, json,
        [f"{application.id}: {workers} workers requested"],
    )  # fmt: skip


def _scale_arguments(arguments: list[str]) -> tuple[str | None, int]:
    """Job (None: not given) and workers of `howdah scale [JOB] WORKERS`.

    Raises:
        UsageError: there is no positive number of workers, or too many arguments.
    """
    *job, workers = arguments
    if len(job) > 1 or not workers.isdecimal() or int(workers) < 1:
        raise UsageError(
            "howdah scale takes a job and a positive number of workers",
            expected="howdah scale [JOB] WORKERS",
            got=" ".join(arguments),
        )
    return (job[0] if job else None), int(workers)


@app.command()
def ps(
    all_users: Annotated[bool, typer.Option("--all-users", help="All users' jobs.")] = False,
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Also list jobs that have ended.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List Howdah's jobs: those submitted from here and, where YARN is configured, those on it."""
    from howdah.config import loader
    from howdah.jobs.status.text import ps_lines

    rows, user = [], None
    problem: HowdahError | None = None
    for name in ("local", "yarn"):  # the first one stands for Spark and Ray too
        cluster = cluster_of(name, loader.from_dict({}))
        try:
            rows += cluster.listed(all_users=all_users, finished=all_states)
            user = cluster.user or user
        except (ClusterError, StorageError) as error:  # what runs here is shown all the same
            problem = error
    answer({"user": user, "jobs": rows}, json, ps_lines(rows))
    if problem is not None:
        raise problem
