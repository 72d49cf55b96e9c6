"""`python -m howdah.yarn driver|agent`: the processes in a job's containers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.model import Config
from howdah.errors import ClusterError, HowdahError, UsageError, render
from howdah.jobs import record
from howdah.yarn import spec
from howdah.yarn.registry import announce


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two roles, and return the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments == ["driver"]:
            return _driver()
        if arguments == ["agent"]:
            return _agent()
        raise UsageError(
            f"unknown role: {' '.join(arguments) or 'none'}",
            where="python -m howdah.yarn",
            expected="driver or agent (howdah submit submits a job)",
        )
    except HowdahError as error:
        print(f"howdah: {render(error)}", file=sys.stderr, flush=True)
        return error.exit_code


def _load() -> Config:
    config = config_module.load(spec.CONFIG)
    run = config.run
    # Do not set the proxied user: without Kerberos skein has set HADOOP_USER_NAME; with it the
    # tokens are already that user's.
    storage.configure(retry_seconds=run.storage_retry_seconds, mode=config.most_open)
    os.environ.update(config.job.env)
    storage.be_patient()
    return config


def _driver() -> int:
    from howdah.yarn.skein_backend import SkeinDriver, verdict

    config = _load()
    backend = SkeinDriver(config)
    try:
        _complete_claim(config, backend.application)
    except ClusterError as error:  # finish, since another attempt would fail in the same way
        backend.finish("FAILED", render(error))
        raise
    ended = verdict(config, backend.application) if backend.attempt > 1 else None
    if ended is not None:
        print(f"howdah: attempt {backend.attempt}: the job had ended: {ended}", flush=True)
        backend.finish(ended["status"], ended["diagnostics"])
        return 0 if ended["status"] == "SUCCEEDED" else 1
    from howdah.jobs.driver.driver import run

    return run(config, spec.CONFIG, backend)


def _complete_claim(config: Config, application: str) -> None:
    """Complete the claim on the run directory, in case its submitter was killed before it did.

    Raises:
        ClusterError: another submission has claimed the run directory since.
    """
    token = os.environ.get(spec.SUBMISSION, "")
    claim = record.read(config.run.directory)
    if claim is None or claim.token != token:
        raise ClusterError(
            "the run directory belongs to another submission",
            where=record.path_of(config.run.directory),
            got="no record" if claim is None else claim.application or "one without an id yet",
            remedy="submit again with another run.directory",
        )
    if not claim.application:
        replace(claim, application=application).write()
    announce(config, application, config.run.directory)


def _agent() -> int:
    from howdah.jobs.agent.agent import run
    from howdah.yarn.skein_backend import SkeinAgent

    config = _load()
    return run(config, spec.CONFIG, SkeinAgent(config))


if __name__ == "__main__":
    sys.exit(main())
