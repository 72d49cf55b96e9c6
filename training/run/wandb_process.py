"""`python -m howdah.training.run.wandb_process`: writes a run to W&B, from JSON lines on stdin.

The first line describes the run (training/run/wandb_tracker.py), the following ones have metrics of
a step, and the last one how the attempt ended. Without a last line rank 0 was killed. Lines on
stdout, in JSON, say where the run is, or why W&B does not get it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_INIT_SECONDS = 30.0
_FINISH_SECONDS = 45.0
"""Less than the tracker waits, so that it gets the reason."""
_LONGEST_DIRECTORY = 50
"""Most characters of a temporary directory in which the paths of W&B's sockets are not too long."""


def main() -> None:
    """Write one attempt of a run."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # W&B's own lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C ends rank 0, which says so

    def answer(**values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(values), file=answers)

    short = "/tmp" if len(tempfile.gettempdir()) > _LONGEST_DIRECTORY else None
    with tempfile.TemporaryDirectory(
        prefix="howdah-", dir=short, ignore_cleanup_errors=True
    ) as place:
        # W&B leaves sockets and logs behind.
        os.environ["TMPDIR"] = tempfile.tempdir = place
        os.environ.setdefault("WANDB_CACHE_DIR", place)
        try:
            _follow(answer)
        except Exception as error:  # noqa: BLE001 - any error of W&B is a warning of the training
            reason = str(error).splitlines() or [""]
            answer(warning=f"{type(error).__name__}: {reason[0]}")
            sys.exit(1)
        finally:
            if "wandb" in sys.modules:
                sys.modules["wandb"].teardown()


def _follow(answer: Callable[..., None]) -> None:
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return
    # W&B must not report usage to its makers unless the user has enabled that.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        run = _begun(first, None)
    except Exception as error:  # noqa: BLE001 - no key, no network, a server that refuses
        reason = str(error).splitlines() or [type(error).__name__]
        answer(warning=f"the run is kept offline: {reason[0]}")
        wandb.teardown()
        run = _begun(first, "offline")
    for file in Path(first["directory"], "wandb").glob("*run-*/logs/*"):
        if file.is_symlink():  # to a log in the cache, which does not stay
            file.unlink()
    directory = os.path.dirname(os.path.abspath(run.dir))
    answer(unsent=run.offline, directory=directory, address=run.url)
    run.config.update(first["config"], allow_val_change=True)
    # Steps that a resumed attempt repeats would be refused as W&B's own step.
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    last = {"code": 1}
    for line in sys.stdin:
        message = json.loads(line)
        if "step" not in message:
            last = message
            break
        run.log({"step": message["step"], **message["values"], "_timestamp": message["time"]})
    run.summary.update(last.get("summary") or {})
    if last.get("handed_over"):
        run.mark_preempting()
    try:
        run.finish(exit_code=last.get("code", 1))
    except TimeoutError:
        answer(warning="the server did not take all in time", unsent=True, directory=directory)


def _begun(first: dict[str, Any], mode: Any) -> Any:
    """W&B's run: begun, or continued where W&B has one of this id.

    Args:
        mode: offline; None: what WANDB_MODE says, else online.
    """
    import wandb

    return wandb.init(
        entity=first["entity"], project=first["project"], id=first["id"], name=first["name"],
        dir=first["directory"], mode=mode, resume="allow", job_type="train",
        settings=wandb.Settings(
            # Neither source code nor the environment leaves this machine.
            save_code=False, disable_code=True, disable_git=True, disable_job_creation=True,
            x_save_requirements=False, x_disable_meta=True, console="off",
            x_stats_pid=first["rank"],
            init_timeout=_INIT_SECONDS,
            finish_timeout=_FINISH_SECONDS, finish_timeout_raises=True,
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
