"""Slowness and hangs in real training processes: on the path of their interpreter, it is run first.

SLOW=json    {"verify": s, "evaluate": s, "save": s, "step": s, "join": s, "leave": s, "away": s}:
             what takes how long in all, a part of it at each shard's piece, batch, write or step;
             join: the last rank comes so late to its first world; leave: each rank enters the
             shutdown of its first world when the file `leave` is in STRUCK, after so long at last;
             away: the storage of checkpoints does not answer for so long from the first save on
STOP=json    {"phase": verify|evaluate|save|step|input|away, "how": "SIGSTOP"|"deadlock"|"read"|
             "SIGKILL", "rank": r}: there a rank stops, once for all processes; the file
             `stopped` in STRUCK says when; `leaving.<rank>` there: it waits for `leave`
STRUCK=dir
"""

import contextlib
import functools
import json
import os
import signal
import threading
import time

if "HOWDAH_LINK_FD" in os.environ or "HOWDAH_STARTED" in os.environ:
    from howdah.data.splits import shard_files as shardfiles
    from howdah.errors import StorageUnavailable
    from howdah.storage.files import Writer
    from howdah.storage.local import LocalStorage
    from howdah.training.checkpoint import manager as checkpoint
    from howdah.training.comm import backends
    from howdah.training.data.readers import BatchSource
    from howdah.training.evaluation import evaluate as evaluation
    from howdah.training.preparation.job import TrainingJob

    SLOW = json.loads(os.environ.get("SLOW", "{}"))
    STOP = json.loads(os.environ.get("STOP", "{}"))
    STRUCK = os.environ.get("STRUCK", "")
    never = threading.Event()

    def rank():
        """The rank in the present world: a process under an agent has none before its first one."""
        names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
        return int(next((os.environ[name] for name in names if name in os.environ), -1))

    def slowly(phase, parts):
        """One of about so many parts of the phase."""
        never.wait(SLOW.get(phase, 0.0) / max(1, parts))
        stop_in(phase)

    def stop_in(phase):
        if STOP.get("phase") == phase and STOP.get("rank", rank()) == rank():
            stop()

    def stop():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.join(STRUCK, "stopped"), os.O_CREAT | os.O_EXCL))
            if STOP["how"] == "deadlock":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
            elif STOP["how"] == "read":
                os.read(os.pipe()[0], 1)
            else:
                os.kill(os.getpid(), getattr(signal, STOP["how"]))

    chunks = shardfiles._chunks

    def slow_chunks(path):
        size = max(1, os.path.getsize(path))
        # Half a second for a piece: one of many seconds would be a real hang.
        shardfiles._CHUNK = max(1, int(size / (1 + 2 * SLOW.get("verify", 0.0))))
        for chunk in chunks(path):
            if ".tfrecord" in path and not path.endswith(".index"):
                slowly("verify", size / len(chunk))
            yield chunk

    evaluate = evaluation.evaluate

    def slow_evaluate(forward, source, comm, *args, **kwargs):
        batches = sum(len(source.block(number)) for number in range(source.block_count))

        def slow_forward(*batch):
            slowly("evaluate", batches)
            return forward(*batch)

        return evaluate(slow_forward, source, comm, *args, **kwargs)

    write = Writer.write
    write_files = checkpoint.write_files
    saving, away = threading.local(), []

    def slow_write(self, data):
        if getattr(saving, "parts", 0):
            slowly("save", saving.parts)
        return write(self, data)

    def slow_files(directory, step, tensors, *args):
        saving.parts = len(tensors)
        if not away:
            away.append(time.monotonic() + SLOW.get("away", 0.0))
        try:
            return write_files(directory, step, tensors, *args)
        finally:
            saving.parts = 0

    open_write = LocalStorage.open_write

    def open_write_later(self, path, mode=None):
        if "checkpoints" in path and away and time.monotonic() < away[0]:
            stop_in("away")
            raise StorageUnavailable("the NameNode does not answer", where=path)
        return open_write(self, path, mode)

    init = backends.init

    def late_init(*args, **more):
        last = int(os.environ.get("HOROVOD_SIZE", 1)) - 1
        if "join" in SLOW and int(os.environ.get("HOROVOD_RANK", 0)) == last:
            never.wait(SLOW.pop("join"))
        comm = init(*args, **more)
        if "leave" in SLOW:
            comm.shutdown = functools.partial(late_shutdown, comm, comm.shutdown)
        return comm

    def late_shutdown(comm, shutdown):
        until = time.monotonic() + SLOW.pop("leave", 0.0)
        with open(os.path.join(STRUCK, f"leaving.{comm.rank}"), "w"):
            pass
        while not os.path.exists(os.path.join(STRUCK, "leave")) and time.monotonic() < until:
            never.wait(0.05)
        shutdown()

    backends.init = late_init
    train_source, block = TrainingJob.train_source, BatchSource.block

    def slow_source(self, comm, start):
        source = train_source(self, comm, start)
        source.slow = True
        return Steps(source)

    class Steps:
        """A source of batches whose steps take long."""

        def __init__(self, source):
            self._source = source

        def __getattr__(self, name):
            return getattr(self._source, name)

        def __iter__(self):
            for batch in self._source:
                slowly("step", 1)
                yield batch

    def slow_block(self, number):
        if getattr(self, "slow", False):
            slowly("input", 1)
        return block(self, number)

    shardfiles._chunks, evaluation.evaluate = slow_chunks, slow_evaluate
    Writer.write, checkpoint.write_files = slow_write, slow_files
    LocalStorage.open_write, TrainingJob.train_source = open_write_later, slow_source
    BatchSource.block = slow_block
