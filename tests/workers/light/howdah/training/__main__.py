"""Stands for `python -m howdah.training --standby` in tests of driver and agent: real
processes, real signals, the real link and relay, without the seconds that a framework takes
to import.

A step ends when all ranks have left a word for it in the rendezvous; the state is a number that
grows by one each step, and rank 0 gives it to all at a world's begin. What each did is written to
<run.directory>/did/<pid>.jsonl.
"""

import ctypes
import faulthandler
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
STACKS = open(os.environ["HOWDAH_STACKS"], "a")  # noqa: SIM115 - for the process's life
faulthandler.register(signal.SIGRTMIN + 3, file=STACKS, all_threads=True)

from howdah.config.loader import load  # noqa: E402

CONFIG = load(sys.argv[sys.argv.index("--config") + 1], [])
DIRECTORY = os.path.join(CONFIG.run.directory, "did")
STEPS, COMMIT = CONFIG.training.max_steps, CONFIG.job.commit_every
SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))
FAULT = json.loads(os.environ.get("FAULT", "{}"))
"""{"rank", "step", "do"}: what goes wrong, once, or each time ("always")."""


def hang_in_a_function_with_a_name():
    threading.Event().wait()


class Gone(Exception):
    """The world is over."""


class Worker:
    def __init__(self):
        self.link = socket.socket(fileno=int(os.environ["HOWDAH_LINK_FD"]))
        self.lines = self.link.makefile("rb")
        self.lock = threading.Lock()
        self.change = self.stop = None
        self.worlds, self.arrived = [], threading.Condition()
        self.phase, self.since, self.step = "import", time.monotonic(), 0
        self.value = self.committed = None
        self.rank = self.generation = None
        os.makedirs(DIRECTORY, exist_ok=True)
        self.log = open(os.path.join(DIRECTORY, f"{os.getpid()}.jsonl"), "a")  # noqa: SIM115

    def say(self, **message):
        with self.lock:
            self.link.sendall(json.dumps(message).encode() + b"\n")

    def did(self, what, **more):
        row = {"what": what, "time": time.time(), "rank": self.rank, "step": self.step,
               "generation": self.generation, **more}  # fmt: skip
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()

    def enter(self, phase):
        self.phase, self.since = phase, time.monotonic()

    def beat(self):
        while True:
            seconds = time.monotonic() - self.since
            self.say(type="beat", phase=self.phase, phase_seconds=seconds, idle_seconds=seconds,
                     idle_cpu_seconds=0.0, doing="", step=self.step)  # fmt: skip
            time.sleep(0.2)

    def listen(self):
        for line in self.lines:
            message = json.loads(line)
            with self.arrived:
                if message["type"] == "world":
                    self.change = None
                    self.worlds.append(message)
                elif message["type"] == "change":
                    self.change = message
                elif message["type"] == "stop":
                    self.stop = message
                self.arrived.notify_all()
        os._exit(9)

    def ask(self, method, path, body=None):
        port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        for _ in range(3):  # a driver that is away: Horovod too tries again twice
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path, body)
            response = connection.getresponse()
            status, answer = response.status, response.read()
            if status != 503:
                break
        return status, answer

    def wait_for(self, key):
        self.enter("wait")
        while True:
            status, value = self.ask("GET", f"/global/{key}")
            if status == 200:
                return value
            if status != 404:
                raise Gone
            if self.stop is not None:
                raise Gone

    def put(self, key, value):
        status, _ = self.ask("PUT", f"/global/{key}", value)
        if status != 200:
            raise Gone

    def barrier(self, name, size):
        self.put(f"{name}.{self.rank}", b"x")
        for other in range(size):
            self.wait_for(f"{name}.{other}")

    def run(self):
        threading.Thread(target=self.beat, daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()
        self.enter("join")
        self.say(type="ready", import_seconds=0.1)
        while True:
            with self.arrived:
                self.arrived.wait_for(lambda: self.worlds or self.stop)
                if self.stop is not None:
                    self.end()
                world = self.worlds.pop(0)
            if self.train(world):
                break
        self.say(type="finished")
        self.did("finished")

    def train(self, world):
        os.environ.update(world["env"])
        self.rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        self.generation = world["generation"]
        self.did("world", size=size, keep=world["keep"], env=world["env"])
        status, who = self.ask("GET", f"/rank_and_size/{os.environ['HOROVOD_HOSTNAME']}:0")
        assert (status, who.decode().split(",")[:2]) == (200, [str(self.rank), str(size)])
        try:
            self.barrier("hello", size)
            self.say(type="joined", generation=self.generation, rank=self.rank)
            if self.rank == 0:
                if not world["keep"]:
                    self.committed = self.newest_checkpoint()
                self.put("state", str(self.committed).encode())
            self.value = self.step = int(self.wait_for("state"))
            self.committed = self.value
            return self.steps(size)
        except Gone:
            self.leave("lost")
            return False

    def steps(self, size):
        while self.step < STEPS:
            self.enter("compute")
            started = time.monotonic()
            time.sleep(SECONDS)
            self.fault()
            seconds = time.monotonic() - started
            self.barrier(f"step{self.step}", size)
            self.value += 1
            self.step += 1
            self.did("step", value=self.value, size=size)
            self.say(type="step", rank=self.rank, step=self.step, total_steps=STEPS, epoch=0,
                     loss=1.0 / self.step, examples_per_second=10.0, step_seconds=seconds,
                     wait_seconds=time.monotonic() - started - seconds)  # fmt: skip
            if self.step % COMMIT == 0:
                self.committed = self.value
                self.say(type="commit", step=self.step)
            if self.rank == 0 and self.step % (4 * COMMIT) == 0:
                self.save()
            if self.rank == 0:  # rank 0 alone decides, at a step that all then leave at
                decision = "change" if self.change else "stop" if self.stop else "on"
                self.put(f"decision{self.step}", decision.encode())
            decision = self.wait_for(f"decision{self.step}")
            if decision == b"change":
                self.committed = self.value
                self.leave("changed")
                return False
            if decision == b"stop":
                if self.rank == 0:
                    self.save()
                self.end()
        return True

    def fault(self):
        due = (FAULT.get("rank"), FAULT.get("step")) == (self.rank, self.step)
        mark = os.path.join(DIRECTORY, "fault")
        if FAULT.get("do") == "slow" and FAULT["rank"] == self.rank:
            time.sleep(0.2)
        elif FAULT.get("do") == "disk" and self.step >= FAULT["step"]:
            if "/nodes/" in os.getcwd():  # a disk of its own (stand_in_cluster.py)
                self.fill_the_disk()
        elif not due or (os.path.exists(mark) and not FAULT.get("always")):
            return
        elif FAULT["do"] == "data error":
            open(mark, "w").close()
            self.say(type="failed", exit_code=3, consequence=False,
                     error={"error": "DataError", "what": "a shard is damaged", "exit_code": 3,
                            "where": "train-00001", "remedy": "make it again"})  # fmt: skip
            os._exit(3)
        elif FAULT["do"] == "crash":
            open(mark, "w").close()
            print("the last words of a crash", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif FAULT["do"] == "hang":
            open(mark, "w").close()
            hang_in_a_function_with_a_name()

        elif FAULT["do"] == "gpu":
            open(mark, "w").close()
            self.fail(RuntimeError("CUDA error: uncorrectable ECC error encountered"))

    def fill_the_disk(self):
        try:
            with open("shard", "ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError as error:
            self.fail(error)

    def fail(self, error):
        """Report as the real training process does, with the fields by which the driver decides."""
        import training

        training.__path__.append(os.path.join(os.environ["PYTHONPATH"].split(":")[-1], "training"))
        from howdah.training.process.failure import describe

        self.say(type="failed", exit_code=6, consequence=False, error=describe(error),
                 step=self.step)  # fmt: skip
        os._exit(6)

    def leave(self, reason):
        if self.stop is not None:
            self.end()
        if not CONFIG.job.elastic:
            self.say(type="failed", exit_code=6, consequence=True,
                     error={"error": "RankLost", "what": "another rank was lost"})  # fmt: skip
            os._exit(6)
        self.enter("join")
        if self.committed is not None:
            self.value = self.step = self.committed
        self.did("left", reason=reason)
        self.say(type="left", generation=self.generation, reason=reason, step=self.committed)

    def end(self):
        self.did("stopped")
        error = {"error": "Terminated", "what": "training was terminated", "exit_code": 143}
        self.say(type="failed", exit_code=143, consequence=False, error=error)
        os._exit(143)

    def save(self):
        with open(os.path.join(DIRECTORY, "checkpoint.part"), "w") as file:
            file.write(str(self.value))
        os.replace(
            os.path.join(DIRECTORY, "checkpoint.part"), os.path.join(DIRECTORY, "checkpoint")
        )
        self.say(type="checkpoint", step=self.step, path="checkpoint")

    def newest_checkpoint(self):
        try:
            with open(os.path.join(DIRECTORY, "checkpoint")) as file:
                return int(file.read())
        except FileNotFoundError:
            return 0


Worker().run()
os._exit(0)
