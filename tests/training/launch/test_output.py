"""What `howdah train` shows of a launcher's output, holds back and logs."""

import io

import pytest

from howdah.training.launch.output import Relay


def relayed(text: str, tmp_path) -> tuple[str, str, str]:
    target = io.StringIO()
    relay = Relay(target, str(tmp_path / "logs" / "launcher"))
    for line in text.splitlines():
        relay.take(line)
    relay.finish()
    return target.getvalue(), relay.held_back(), (tmp_path / "logs" / "launcher").read_text()


def test_torchrun_s_account_of_a_failed_job_is_held_back_and_its_other_warnings_are_not(tmp_path):
    head = "1125 09:21:05.897000 21618 torch/"
    shown, held, _ = relayed(f"W{head}run.py:874] Setting OMP\nstep 1/2\n", tmp_path)
    assert (shown, held) == (f"W{head}run.py:874] Setting OMP\nstep 1/2\n", "")
    api = "distributed/elastic/multiprocessing/api.py"
    for words_ in (
        f"W{head}{api}:1028] Sending process 21708 closing signal SIGTERM",
        f"E{head}{api}:1002] failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: python",
        f"W{head}distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting",
    ):
        shown, held, _ = relayed(f"step 1/2\n{words_}\nRoot Cause\n", tmp_path)
        assert (shown, held) == ("step 1/2\n", f"{words_}\nRoot Cause")


def test_the_launchers_accounts_of_a_failed_job_are_held_back_and_logged(tmp_path):
    rule = "-" * 74
    box = f"{rule}\nPrimary job  terminated normally, but 1 process returned\n{rule}\n"
    shown, held, logged = relayed(f"step 1/2\n{box}", tmp_path)
    assert shown == "step 1/2\n"
    assert "Primary job" in held
    assert "Primary job" in logged
    trace = "[0]<stderr>:step 1/2\nTraceback (most recent call last):\n  File x\nRuntimeError: y\n"
    shown, held, _ = relayed(trace, tmp_path)
    assert shown == "step 1/2\n"
    assert held.endswith("RuntimeError: y")


@pytest.mark.parametrize("full", [True, False])
def test_a_log_that_cannot_be_written_ends_neither_the_lines_nor_the_launcher(
    tmp_path, capsys, full
):
    log = tmp_path / "logs" / "launcher"
    log.parent.mkdir()
    if full:
        log.symlink_to("/dev/full")  # a disk without room
    else:
        log.mkdir()
    target = io.StringIO()
    relay = Relay(target, str(log))
    lines = [f"step {number}/9999" for number in range(9999)]  # more than a file's buffer holds
    for line in lines:
        relay.take(line)
    relay.finish()
    assert target.getvalue().splitlines() == lines
    assert capsys.readouterr().err.count(str(log)) == 1


def test_other_boxes_of_mpirun_are_shown(tmp_path):
    rule = "-" * 74
    text = f"{rule}\nThere are not enough slots available\n{rule}\nstep 1/2\n{rule}\n"
    shown, held, _ = relayed(text, tmp_path)
    assert shown == text
    assert held == ""
