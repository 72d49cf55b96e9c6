"""What tests do to real training processes: on the path of their interpreter, it is run first.

    ELASTIC_ROWS=dir     each step that a rank begins is written down there, with its rows
    ELASTIC_FAULTS=json  [{"where": ..., "rank": r, "step": s, "world": g}, ...]: at that place the
                         process kills itself by SIGKILL, or "signal", once; keys left out fit any.
                         With "after", a glob, it first waits until a file of that pattern is there

Places: join (before a world forms), share (before the state of memory crosses), step (a step
begins), message (before "message": N of torch's gradients begins), reduce (before the gradients are
summed, or waited for), evaluate, save (a checkpoint is half
written), export.
"""

import contextlib
import glob
import json
import os
import signal
import threading
import time

if "HOWDAH_LINK_FD" in os.environ:
    from howdah.training.checkpoint import manager as checkpoint
    from howdah.training.checkpoint.elastic_state import ElasticState
    from howdah.training.comm import backends
    from howdah.training.elastic.control_channel import ControlChannel
    from howdah.training.evaluation import evaluate as evaluation
    from howdah.training.hooks import conclusion
    from howdah.training.preparation.job import TrainingJob

    FAULTS = json.loads(os.environ.get("ELASTIC_FAULTS", "[]"))
    ROWS = os.environ["ELASTIC_ROWS"]
    os.makedirs(ROWS, exist_ok=True)
    here = {"world": 0, "rank": -1, "step": 0}

    def place(where, **reached):
        """Die here, if a fault says so and has not struck yet."""
        now = here | reached
        for number, fault in enumerate(FAULTS):
            if fault["where"] != where:
                continue
            if any(key in now and fault[key] != now[key] for key in fault):
                continue
            with contextlib.suppress(FileExistsError):
                name = os.path.join(ROWS, f"struck-{number}-{now['rank']}")
                if "rank" in fault or not any(
                    one.startswith(f"struck-{number}-") for one in os.listdir(ROWS)
                ):
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL))
                    if "after" in fault:
                        _wait_for(fault["after"])
                    # To this thread: by another's way it would get on for some instructions more.
                    how = fault.get("signal", signal.SIGKILL)
                    signal.pthread_kill(threading.get_ident(), how)

    def _wait_for(pattern, limit=60.0):
        end = time.monotonic() + limit
        while not glob.glob(pattern) and time.monotonic() < end:
            time.sleep(0.02)

    def before(owner, name, where, **values):
        """Have a place in front of a function."""
        original = getattr(owner, name)

        def wrapped(*args, **kwargs):
            place(where, **{key: value(*args) for key, value in values.items()})
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    class Watched:
        """A source of batches that writes down what is taken from it."""

        def __init__(self, source, comm, per_epoch):
            self._source, self._comm, self._per_epoch = source, comm, per_epoch

        @property
        def waited(self):
            return self._source.waited

        def __iter__(self):
            path = os.path.join(ROWS, f"rows-{os.getpid()}.jsonl")
            with open(path, "a", encoding="utf-8") as file:
                for batch in self._source:
                    step = batch.epoch * self._per_epoch + batch.step
                    here.update(step=step, rank=self._comm.rank)
                    if batch.micro == 0:
                        place("step")
                    ids = [one.decode() for one in batch.row_ids if one]
                    line = here | {"size": self._comm.size, "ids": ids, "pid": os.getpid()}
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    yield batch

    train_source = TrainingJob.train_source

    def watched_source(self, comm, start):
        _patch_reduction()
        source = train_source(self, comm, start)
        return Watched(source, comm, self.planner.steps_per_epoch)

    def _patch_reduction():
        import sys

        for module, owner, name in (
            ("howdah.training.optim.gradients_torch", "FlatGradients", "reduce_"),
            ("howdah.training.optim.steps_tf", "Steps", "reduce"),
        ):
            kind = getattr(sys.modules.get(module), owner, None)
            if kind is not None and not hasattr(kind, "watched"):
                kind.watched = True
                before(kind, name, "reduce")
        messages = getattr(
            sys.modules.get("howdah.training.optim.messages_torch"), "Messages", None
        )
        if messages is not None and not hasattr(messages, "watched"):
            messages.watched = True
            before(messages, "_begin", "message", message=lambda sums, comm: sums._begun)

    next_world, init = ControlChannel.next_world, backends.init

    def watched_world(self):
        world = next_world(self)
        here.update(world=world.generation, rank=int(world.env["HOROVOD_RANK"]))
        return world

    TrainingJob.train_source = watched_source
    ControlChannel.next_world = watched_world
    before(backends, "init", "join")
    before(ElasticState, "share", "share")
    before(evaluation, "evaluate", "evaluate")
    before(checkpoint, "write_manifest", "save")
    before(conclusion, "export", "export")
