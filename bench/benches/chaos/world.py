"""What all parts of the bench share: the cluster, the log of what happened, commands that run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.benches.chaos import reading
from bench.benches.chaos.reading import Broken, Hdfs
from tests import ROOT
from tools.minicluster import MiniCluster

ALLOWED = {0, 1, 4, 5, 6, 130, 143, -9}
"""Exit codes that a fault may give a command whose input is good: 2 and 3 blame the input."""
COMMAND_LIMIT = 1200.0  # seconds; detects a hang
TRIES = 60


class World:
    """The cluster, and what is written about it.

    Args:
        folder: of everything but HDFS.
        cluster: runs.
        seed: of the faults.
    """

    def __init__(self, folder: Path, cluster: MiniCluster, seed: int) -> None:
        self.folder, self.cluster, self.seed = folder, cluster, seed
        self.root = "/chaos"
        self.home = cluster.hdfs_url + self.root
        self.user = "alice" if cluster.plan.kerberos else cluster.plan.user
        self.hdfs = Hdfs(self._namenodes, self.user)
        self.over = threading.Event()
        """No more work begins."""
        self.broken: list[str] = []
        self.secret = secrets.token_hex(20)
        """Value in the environment of every command and job, which nothing may write."""
        self.env = {
            **cluster.env,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if cluster.plan.kerberos:
            self._sign_in()
        self.running: dict[str, subprocess.Popen] = {}
        """Commands that run now, by what they do."""
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._log = open(folder / "events.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def _sign_in(self) -> None:
        """This process and all commands are alice, by her keytab."""
        keytab, cache = str(self.cluster.keytab(self.user)), f"FILE:{self.folder}/ticket"
        self.env |= {"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": keytab}
        names = [name for name in self.env if name.startswith(("KRB5", "HADOOP"))]
        os.environ.update({name: self.env[name] for name in names})
        self.cluster.make_home(self.user)
        reading.sign_in()

    def _namenodes(self) -> list[str]:
        plan, records = self.cluster.plan, self.cluster.records
        names = [name for name in ("namenode", "namenode-2") if name in records]
        return [plan.address(f"{name}-http") for name in names if not records[name].paused]

    # --------------------------------------------------------------------------- what happened
    def note(self, who: str, what: str, **more: object) -> None:
        """A line of the log, and of the terminal."""
        at = round(time.monotonic() - self._began, 1)
        with self._lock:
            self._log.write(json.dumps({"at": at, "who": who, "what": what, **more}) + "\n")
            self._log.flush()
            rest = " ".join(f"{name}={value}" for name, value in more.items())
            print(f"{at:8.1f} s  {who:12} {what} {rest}".rstrip(), flush=True)

    def broke(self, who: str, what: str) -> None:
        """An invariant does not hold."""
        self.broken.append(f"{who}: {what}")
        self.note(who, "BROKEN", invariant=what, seed=self.seed)

    @contextlib.contextmanager
    def checking(self, who: str) -> Iterator[None]:
        """Checks inside: what they find is broken is noted."""
        try:
            yield
        except Broken as error:
            self.broke(who, str(error))
        except (OSError, KeyError, TypeError, ValueError) as error:
            self.broke(who, f"cannot be read: {error!r}")

    # --------------------------------------------------------------------------------- commands
    def command(self, who: str, *words: str, env: Mapping[str, str] | None = None) -> tuple:
        """(exit code, stdout, stderr) of a `howdah` command."""
        out, err = (self.folder / "commands" / f"{who}.{name}" for name in ("out", "err"))
        out.parent.mkdir(exist_ok=True)
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "howdah.cli", *words],
                cwd=self.folder, env={**self.env, **(env or {})}, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
        self.running[who] = process
        try:
            code = process.wait(COMMAND_LIMIT)
        except subprocess.TimeoutExpired:
            self.broke(who, f"{words[0]} hangs for {COMMAND_LIMIT:.0f} s")
            process.terminate()
            code = process.wait(60)
        finally:
            self.running.pop(who, None)
        complaints = err.read_text(errors="replace")
        (self.folder / "commands" / "all.err").open("a").write(complaints)
        if "Traceback (most recent call last)" in complaints:
            self.broke(who, f"{words[0]} ended with a traceback: {complaints[-1500:]}")
        if code not in ALLOWED:
            self.broke(who, f"{words[0]} ended with {code}: {complaints[-1500:]}")
        return code, out.read_text(errors="replace"), complaints

    def until_done(self, who: str, *words: str) -> str | None:
        """stdout of the command that ended well, repeated as a scheduler repeats it; None: it never
        did, or all is over."""
        for _ in range(TRIES):
            began = time.monotonic()
            code, out, err = self.command(who, *words)
            seconds = round(time.monotonic() - began, 1)
            if code == 0:
                self.note(who, f"{words[0]} done", seconds=seconds)
                return out
            last = err.strip().splitlines() or ["-"]
            first = next((line for line in last if line.startswith("howdah: ")), last[0])
            self.note(who, f"{words[0]} ended with {code}", seconds=seconds, said=first[:200])
            if self.over.wait(1.0):
                return None
        self.broke(who, f"{words[0]} has not ended well in {TRIES} tries")
        return None

    # ----------------------------------------------------------------------------------- the end
    def written(self) -> Iterator[tuple[str, bytes]]:
        """Every file of text that something wrote on this machine."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and os.path.getsize(path) < 2**26:
                    with contextlib.suppress(OSError), open(path, "rb") as file:
                        yield path, file.read()

    def check_secrets(self) -> None:
        """The secret is in no log and no file but a job's own file of secrets."""
        secret = self.secret.encode()
        holders = [path for path, data in self.written() if secret in data]
        bad = [path for path in holders if "container_tokens" not in path]
        if bad:
            raise Broken(f"the secret stands in {bad[:5]}")
