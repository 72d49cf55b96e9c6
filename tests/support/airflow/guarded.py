"""Commands under guard, by what /proc says of them."""

import os
import threading
from pathlib import Path

from howdah.core.processes import stat_fields
from tests.support.waiting import wait_until


def gone(pid):
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX"


def running(words):
    """Processes of a command under guard, the guard's among them, by their command lines."""
    pids = []
    for name in os.listdir("/proc"):
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[-1] in argv:
            pids.append(int(name))
    return pids


def wait_for_start(words):
    """The guard and the command are there."""
    wait_until(lambda: len(running(words)) >= 2)


def ask(hook, words, on_line=lambda line: None):
    """A thread that runs a command, which has started, and the list of what it will raise."""
    from howdah.airflow.failures import HowdahCommandFailed

    raised = []

    def run():
        try:
            hook.run(words, on_line=on_line)
        except HowdahCommandFailed as error:
            raised.append(error)

    asking = threading.Thread(target=run)
    asking.start()
    wait_for_start(words)
    return asking, raised


def other_howdah(directory):
    """A program that says hello as a howdah of another version, and waits."""
    path = directory / "howdah-9"
    path.write_text("#!/bin/sh\necho 'howdah guard 9.9.0 pid 1' >&2\nread line\n")
    path.chmod(0o755)
    return str(path)
