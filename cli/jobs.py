"""The commands of jobs, on YARN and elsewhere: submit, status, logs, kill, scale, ps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from howdah.cli import streams
from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    allowed,
    answer,
    chosen,
    load,
    load_to_begin,
    note_command,
    say,
)
from howdah.core.terminal import shown
from howdah.errors import NotFound, UsageError

app = typer.Typer()

_ID = re.compile(r"(application_|local-|spark-|ray-)[0-9a-f_-]+$")

Job = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="Its id or run directory; none: that of --config."),
]


def _find(job: str | None, config: str | None, overrides: list[str] | None = None):
    """(record, None, None) of a job elsewhere; (None, ResourceManager, its job) of one on YARN.

    Raises:
        NotFound: there is no such job. Said before YARN is asked for one: it may not be configured.
        UsageError: none is named.
    """
    from howdah.jobs.clusters import control

    if job is not None and not _ID.match(job):
        allowed(("JOB", "path", job))
    checked = load(config, overrides) if config is not None or overrides else None
    record = control.find(job, checked)
    if record is not None:
        return record, None, None
    if job is None and checked is None:
        raise UsageError(
            "which job?", expected="an application's id, a run directory, or --config",
            remedy="howdah ps --all lists jobs",
        )  # fmt: skip
    if job is None:
        _refuse_missing(checked)
    elif not job.startswith("application_"):
        found = _of_directory(job)
        return None, _yarn(checked), found
    from howdah.yarn.client.status import find_job

    manager = _yarn(checked)
    return None, manager, find_job(manager, job, checked)


def _refuse_missing(checked: Any) -> None:
    """Raise NotFound for a configuration of another place than YARN that was not submitted."""
    from howdah.yarn.client.submission_lock import read_claim

    if checked.job.on != "yarn" and read_claim(checked.run.directory) is None:
        raise NotFound(
            "no job was submitted to this run directory", where=checked.run.directory,
            remedy=f"howdah submit --on {checked.job.on} --config ...",
        )  # fmt: skip


def _yarn(checked: Any):
    from howdah.hadoop.resourcemanager import ResourceManager

    return ResourceManager(user=checked.run.user if checked else None)


def _of_directory(job: str):
    """The job on YARN that was submitted to a run directory.

    Raises:
        NotFound: none was; it may be an id of another place that is unknown here.
    """
    from howdah.yarn.client.status import Job as YarnJob
    from howdah.yarn.client.submission_lock import read_claim

    claim = read_claim(job)
    if claim is None or claim.application is None:
        raise NotFound(
            "no job has this id, and none was submitted to such a run directory", where=job,
            expected="an id (application_..., local-..., spark-..., ray-...), or run.directory",
            remedy="howdah ps --all lists jobs",
        )  # fmt: skip
    return YarnJob(claim.application, job)


@app.command()
def submit(
    config: ConfigPath = None,
    set: Overrides = None,
    on: Annotated[
        str | None, typer.Option("--on", help="yarn, local, spark or ray; none: job.on.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; Ctrl-C ends it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and print what would be asked for.")
    ] = False,
    etl: Annotated[
        bool,
        typer.Option("--etl", help="With --on spark: first make the dataset, in the same Spark."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Submit a training job to YARN, this machine, Spark or Ray: its id, and how to follow it."""
    asked = [*(set or []), *([] if on is None else [f"job.on={on}"])]
    checked = load_to_begin(
        chosen(config, set), asked, lambda c: c.yarn if c.job.on == "yarn" else None
    )
    note_command()
    if checked.job.on == "yarn":
        if etl:
            raise UsageError(
                "--etl makes the dataset in the Spark application that then trains",
                expected="--on spark", got="--on yarn",
                remedy="run `howdah etl` first, and submit without --etl",
            )  # fmt: skip
        _submit_to_yarn(checked, wait, dry_run, json)
    else:
        _submit_elsewhere(checked, wait, dry_run, etl, json)


def _submit_to_yarn(checked: Any, wait: bool, dry_run: bool, json: bool) -> None:
    from howdah.hadoop.kerberos import logged_in
    from howdah.jobs.clusters import record
    from howdah.yarn import submit as submission

    if dry_run:
        plan = submission.dry_run(checked, say)
        answer(plan, json, submission.lines(plan))
        return
    with logged_in(*checked.yarn.login):
        record.free_for_yarn(checked.run.directory)
    found = submission.submit(checked, say)
    if wait:
        final = submission.follow(checked, found, say)
        answer({**found.as_dict(), "status": final}, json, [f"{found.application} succeeded"])
        return
    lines = [found.application, f"page: {found.tracking_url}", f"follow it: {found.follow}"]
    answer(found.as_dict(), json, lines)


def _submit_elsewhere(checked: Any, wait: bool, dry_run: bool, etl: bool, json: bool) -> None:
    from howdah.jobs.clusters import control
    from howdah.jobs.clusters import submit as submission
    from howdah.models.runs import settings

    if dry_run:
        plan = submission.dry_run(checked, say, etl=etl)
        answer(plan, json, submission.lines(plan))
        return
    done = settings.already_finished(checked)
    if done is not None and not etl:
        answer(settings.of_finished(checked, on=checked.job.on), json, done)
        return
    found = submission.submit(checked, say, etl=etl)
    name = found.record.application
    if wait:
        final = control.follow(found, checked.checkpoint.grace_seconds, say)
        answer({**found.as_dict(), "status": final}, json, [f"{name} succeeded"])
        return
    page = [f"page: {found.page}"] if found.page else []  # none yet while the dataset is made
    answer(found.as_dict(), json, [name, *page, f"follow it: {found.follow}"])


@app.command()
def status(
    job: Job = None, config: ConfigPath = None, set: Overrides = None, json: AsJson = False
) -> None:
    """Show a job: state, ranks, step, loss, time left, last checkpoint, restarts."""
    trained = _of_train(job, config, set)
    if trained is not None:
        from howdah.training.run.status import lines

        answer(trained, json, lines(trained))
        return
    record, manager, of_yarn = _find(job, config, set)
    if record is not None:
        from howdah.jobs.clusters import control

        shown_status = control.job_status(record)
        answer(shown_status, json, control.status_lines(shown_status))
        return
    from howdah.yarn.client.status import job_status, status_lines

    found = job_status(manager, of_yarn)
    answer(found, json, status_lines(found))


def _of_train(job: str | None, config: str | None, set: list[str] | None) -> Any:
    """The status of a run directory that no job was submitted to; None: it is not a run."""
    from howdah.jobs.clusters import record
    from howdah.training.run.status import run_status
    from howdah.yarn.client.submission_lock import read_claim

    if job is not None and _ID.match(job):
        return None
    if job is not None:
        allowed(("JOB", "path", job))
        directory = job
    elif config is not None:
        directory = load(config, set).run.directory
    else:
        return None
    submitted = record.read(directory) is not None or read_claim(directory) is not None
    return None if submitted else run_status(directory)


@app.command()
def logs(
    job: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank's.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends (rank 0, or --rank).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the logs of a job: of all its containers, or of one rank."""
    from howdah.yarn.client import logs as joblogs

    record, manager, of_yarn = _find(job, config, set)
    of_rank = follow or rank is not None
    if record is not None:
        from howdah.jobs.clusters import control

        if of_rank:
            control.rank_log(record, rank or 0, follow=follow, out=_log_line(json))
            return
        application, found = record.application, control.container_logs(record)
    else:
        if of_rank:
            joblogs.of_rank(manager, of_yarn, rank or 0, follow=follow, out=_log_line(json))
            return
        application = of_yarn.application
        found = joblogs.of_containers(manager, of_yarn, progress=say)
    answer({"application": application, "logs": found}, json, joblogs.lines(found))


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
    save_seconds: Annotated[float, typer.Option(min=1, help="How long saving may take.")] = 120.0,
    json: AsJson = False,
) -> None:
    """End a job and wait until it has ended."""
    record, manager, found = _find(job, config, set)
    if record is not None:
        from howdah.jobs.clusters import control

        application = record.application
        state = control.kill(record, save=save, save_seconds=save_seconds, progress=say)
    else:
        from howdah.yarn.client import control as of_yarn

        application = found.application
        state = of_yarn.kill(manager, found, save=save, save_seconds=save_seconds, progress=say)
    answer({"application": application, "state": state}, json, [f"{application} is {state}"])


@app.command()
def scale(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[JOB] WORKERS", help="How many workers.")
    ],
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Ask an elastic job for another number of workers."""
    from howdah.yarn.client import control as of_yarn

    job, workers = of_yarn.scale_arguments(arguments)
    record, manager, found = _find(job, config, set)
    if record is not None:
        from howdah.jobs.clusters import control

        application = record.application
        control.scale(record, workers)
    else:
        application = found.application
        of_yarn.scale(manager, found, workers)
    answer(
        {"application": application, "workers": workers}, json,
        [f"{application} was asked for {workers} workers"],
    )  # fmt: skip


@app.command()
def ps(
    all_users: Annotated[bool, typer.Option("--all-users", help="All users' jobs.")] = False,
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Those that are over as well.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List Howdah's jobs: those submitted from this machine, and where YARN is configured its."""
    from howdah.hadoop import conf
    from howdah.jobs.clusters import control
    from howdah.yarn.client.status import list_jobs, own_user, ps_lines

    here = control.list_jobs(finished=all_states)
    if conf.load(names=conf.YARN_FILES).directory is None:  # no cluster is configured here
        answer({"user": None, "jobs": here}, json, ps_lines(here))
        return
    manager = _yarn(None)
    user = own_user(manager)
    found = list_jobs(manager, user=None if all_users else user, finished=all_states)
    answer({"user": user, "jobs": here + found}, json, ps_lines(here + found))
