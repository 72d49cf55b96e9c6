"""The commands of jobs on YARN: submit, status, logs, kill, scale, ps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from howdah.cli.common import AsJson, ConfigPath, Overrides, answer, load, say
from howdah.core.terminal import shown
from howdah.errors import UsageError

app = typer.Typer()

Job = Annotated[
    str | None, typer.Argument(metavar="[APPLICATION]", help="Its id; none: that of --config.")
]


def _yarn(config: str | None, overrides: list[str] | None = None):
    """The cluster's ResourceManager, and the configuration if one is given."""
    from howdah.hadoop.resourcemanager import ResourceManager

    checked = load(config, overrides) if config is not None or overrides else None
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

    checked = load(config, set)
    if dry_run:
        plan = submission.dry_run(checked, say)
        answer(plan, json, submission.lines(plan))
        return
    found = submission.submit(checked, say)
    if wait:
        say(f"submitted {found.application}: {found.tracking_url}")
        final = submission.follow(checked, found, say)
        answer({**found.as_dict(), "status": final}, json, [f"{found.application} succeeded"])
        return
    lines = [found.application, f"page: {found.tracking_url}", f"follow it: {found.follow}"]
    answer(found.as_dict(), json, lines)


@app.command()
def status(
    application: Job = None, config: ConfigPath = None, set: Overrides = None, json: AsJson = False
) -> None:
    """Show a job on YARN: state, ranks, step, loss, time left, last checkpoint, restarts."""
    from yarn.client.status import find_job, job_status, status_lines

    manager, checked = _yarn(config, set)
    found = job_status(manager, find_job(manager, application, checked))
    answer(found, json, status_lines(found))


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
    from yarn.client import logs as joblogs
    from yarn.client.status import find_job

    manager, checked = _yarn(config, set)
    job = find_job(manager, application, checked)
    if follow or rank is not None:
        joblogs.of_rank(manager, job, rank or 0, follow=follow, out=_log_line(json))
        return
    found = joblogs.of_containers(manager, job, progress=say)
    answer({"application": job.application, "logs": found}, json, joblogs.lines(found))


def _log_line(as_json: bool) -> Callable[[str], None]:
    if as_json:
        raise UsageError("a rank's log is text", remedy="leave out --json, or --rank and --follow")
    return lambda line: print(shown(line), flush=True)


@app.command()
def kill(
    application: Job = None,
    config: ConfigPath = None,
    set: Overrides = None,
    save: Annotated[bool, typer.Option("--save", help="Save a checkpoint first.")] = False,
    save_seconds: Annotated[float, typer.Option(min=1, help="How long saving may take.")] = 120.0,
    json: AsJson = False,
) -> None:
    """End a job on YARN and wait until YARN has confirmed it."""
    from yarn.client import control
    from yarn.client.status import find_job

    manager, checked = _yarn(config, set)
    job = find_job(manager, application, checked)
    state = control.kill(manager, job, save=save, save_seconds=save_seconds, progress=say)
    answer(
        {"application": job.application, "state": state}, json, [f"{job.application} is {state}"]
    )


@app.command()
def scale(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[APPLICATION] WORKERS", help="How many workers.")
    ],
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Ask an elastic job for another number of workers."""
    from yarn.client import control
    from yarn.client.status import find_job

    application, workers = control.scale_arguments(arguments)
    manager, checked = _yarn(config, set)
    job = find_job(manager, application, checked)
    control.scale(manager, job, workers)
    answer(
        {"application": job.application, "workers": workers}, json,
        [f"{job.application} was asked for {workers} workers"],
    )  # fmt: skip


@app.command()
def ps(
    all_users: Annotated[bool, typer.Option("--all-users", help="All users' jobs.")] = False,
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Those that are over as well.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List Howdah's jobs on YARN."""
    from yarn.client.status import list_jobs, own_user, ps_lines

    manager, _ = _yarn(None)
    user = own_user(manager)
    found = list_jobs(manager, user=None if all_users else user, finished=all_states)
    answer({"user": user, "jobs": found}, json, ps_lines(found))
