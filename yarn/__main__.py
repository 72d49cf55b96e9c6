"""`python -m yarn submit|driver|agent`: submit a job, and what runs in its containers.

    python -m yarn submit --config run.yaml --wait      (the same as `howdah submit`)

`driver` and `agent` are started by what `submit` asks YARN to run, in a container's directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from howdah import config as config_module
from howdah import storage
from howdah.config import Config
from howdah.errors import ClusterError, HowdahError, UsageError, render
from yarn import spec
from yarn.owner import held_by
from yarn.registry import announce


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the roles; the process's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    role = words.pop(0) if words else ""
    if role == "submit":
        from howdah.cli import main as howdah

        sys.argv = ["howdah", "submit", *words]
        howdah()  # exits
    try:
        if role not in ("driver", "agent") or words:
            raise UsageError(
                "unknown role",
                where="python -m yarn",
                expected="submit ..., driver or agent",
                got=" ".join([role, *words]) or "none",
            )
        return _driver() if role == "driver" else _agent()
    except HowdahError as error:
        print(f"howdah: {render(error)}", file=sys.stderr, flush=True)
        return error.exit_code


def _load() -> Config:
    config = config_module.load(spec.CONFIG)
    run = config.run
    # Without Kerberos skein names the user to act for itself (HADOOP_USER_NAME); with it the
    # tokens are that user's already.
    storage.configure(retry_seconds=run.storage_retry_seconds)
    os.environ.update(config.yarn.env)
    return config


def _driver() -> int:
    from yarn.backend_skein import SkeinDriver, verdict

    config = _load()
    backend = SkeinDriver(config)
    try:
        _own(config, backend.application)
    except ClusterError as error:  # for good: another attempt would find the same
        backend.finish("FAILED", render(error))
        raise
    told = verdict(config, backend.application) if backend.attempt > 1 else None
    if told is not None:
        print(f"howdah: attempt {backend.attempt}: the job had ended: {told}", flush=True)
        backend.finish(told["status"], told["diagnostics"])
        return 0 if told["status"] == "SUCCEEDED" else 1
    from yarn.driver import run

    return run(config, spec.CONFIG, backend)


def _own(config: Config, application: str) -> None:
    """Complete the claim on the run directory, should its submitter have been killed before that.

    Raises:
        ClusterError: the run directory is another submission's by now.
    """
    token = os.environ.get(spec.SUBMISSION, "")
    path = storage.join(config.run.directory, "yarn", "owner.json")
    claim = held_by(config.run.directory)
    if claim is None or claim.token != token:
        raise ClusterError(
            "the run directory belongs to another submission",
            where=path,
            expected=token,
            got="nobody" if claim is None else f"{claim.token} ({claim.application})",
            remedy="submit again with a run.directory of its own",
        )
    if claim.application is None:
        storage.write_whole(path, replace(claim, application=application).as_json())
    announce(config, application)


def _agent() -> int:
    from yarn.agent import run
    from yarn.backend_skein import SkeinAgent

    config = _load()
    return run(config, spec.CONFIG, SkeinAgent(config))


if __name__ == "__main__":
    sys.exit(main())
