"""An agent's training process, and what becomes of it when the agent cannot hear it any more."""

import sys

from howdah.jobs.training_process import TrainingProcess
from tests.support.waiting import wait_until

SAYS = """
import os, socket, time
socket.socket(fileno=int(os.environ["HOWDAH_LINK_FD"])).sendall(b'{"type": "ready"}\\n')
time.sleep(600)
"""


def test_a_process_whose_listener_fails_is_ended_and_its_end_reported(tmp_path, capfd):
    def heard(number, message):
        raise KeyError("a defect")

    ended = []
    process = TrainingProcess(
        3,
        [sys.executable, "-c", SAYS],
        {"HOWDAH_STACKS": str(tmp_path / "stacks")},
        str(tmp_path),
        on_message=heard,
        on_end=lambda number, code: ended.append((number, code)),
    )
    wait_until(lambda: ended)
    assert ended == [(3, -9)]
    assert not process.alive
    assert "thread channel-3 failed: KeyError" in capfd.readouterr().err
