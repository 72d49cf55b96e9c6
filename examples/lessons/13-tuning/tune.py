"""Starts PostgreSQL and three machines that tune on it, kills one, and reads what is left."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import optuna
import pyarrow.parquet as parquet
import torch
from sklearn.feature_extraction.text import HashingVectorizer

optuna.logging.set_verbosity(optuna.logging.WARNING)
WORKER = Path(__file__).with_name("worker.py")


@contextlib.contextmanager
def postgres():
    """A server that listens on a socket in a private directory, and ends with this process."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    place, user = tempfile.mkdtemp(), ["setpriv", "--pdeathsig=INT"]
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(place, "postgres")
        user += ["--reuid=postgres", "--regid=postgres", "--clear-groups"]
    make = ["initdb", "-D", "data", "--username=study", "--auth=trust", "--no-sync"]
    serve = ["postgres", "-D", "data", "-c", f"unix_socket_directories={place}"]
    serve += ["-c", "listen_addresses="]
    quiet = {"cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*user, programs / make[0], *make[1:]], check=True, **quiet)
    server = subprocess.Popen([*user, programs / serve[0], *serve[1:]], **quiet)
    while subprocess.run([programs / "pg_isready", "-h", place], **quiet).returncode:
        time.sleep(0.1)
    try:
        yield f"postgresql+psycopg2://study@/postgres?host={place}"
    finally:
        server.send_signal(signal.SIGINT)  # "fast shutdown"
        server.wait()
        shutil.rmtree(place)


def features(path):
    """Hashed bags of words of 100 texts of each of nine packages."""
    table = parquet.read_table(path).to_pandas()
    table = table[table.text.str.len() > 40].groupby("label").sample(100, random_state=0)
    table = table.sample(frac=1, random_state=0)
    words = HashingVectorizer(n_features=1000).transform(table.text).toarray()
    x, y = (
        torch.tensor(words).float(),
        torch.tensor(table.label.astype("category").cat.codes.values),
    )
    torch.save({"train": x[:600], "y": y[:600].long(), "validation": x[600:], "z": y[600:].long()},
               "features.pt")  # fmt: skip


def kill_in_a_trial(study, process, machine):
    """SIGKILL while the machine is in the middle of a trial; the trial's number."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)  # so that the trial cannot end while we look
        for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            if trial.user_attrs.get("machine") == machine and trial.intermediate_values:
                process.kill()
                process.wait()
                return trial.number
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)


def draw(importances, trials):
    """Importances as bars, and all trials by their learning rate."""
    for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[part] = "#808080"
    _, (left, right) = plt.subplots(1, 2, figsize=(6, 3.2), layout="tight")
    left.barh(list(importances)[::-1], list(importances.values())[::-1])
    left.set_title("What accuracy depends on")
    left.set_xlabel("importance (fANOVA)")
    for machine in (0, 1, 2):
        points = [t for t in trials if t.user_attrs["machine"] == machine and t.value is not None]
        rates, values = [t.params["lr"] for t in points], [t.value for t in points]
        right.scatter(rates, values, s=12, label=f"machine {machine}")
    right.set(xscale="log", xlabel="lr", ylabel="accuracy", title="All trials")
    right.legend(frameon=False, fontsize=7)
    plt.savefig("importance.svg", transparent=True)


features(sys.argv[1])
with postgres() as url:
    quick = optuna.create_study(storage=url, study_name="n_trials of each")
    study = optuna.create_study(storage=url, study_name="texts", direction="maximize")
    machines = [subprocess.Popen([sys.executable, WORKER, url, str(n)]) for n in (0, 1, 2)]
    number = kill_in_a_trial(study, machines[2], 2)
    killed, state = time.monotonic(), study.trials[number].state.name
    print(f"Machine 2 was killed in trial {number}; the database says: {state}.")
    while study.trials[number].state.name == "RUNNING":
        time.sleep(0.1)
    print(f"seconds until another machine has noticed = {time.monotonic() - killed:.1f} s")
    codes = [machine.wait() for machine in machines]
    trials = study.get_trials()
    print("trials with n_trials=5 on three machines =", len(quick.trials))
    for state, count in sorted(Counter(trial.state.name for trial in trials).items()):
        print(f"trials {state} = {count}")
    again = [t for t in trials if t.system_attrs.get("failed_trial") == number]
    print("trials that repeat the killed one =", len(again))
    print("its values are the same =", int(again[0].params == trials[number].params))
    for machine, count in sorted(Counter(t.user_attrs["machine"] for t in trials).items()):
        print(f"trials begun by machine {machine} =", count)
    print(f"best accuracy = {study.best_value:.3f}")
    importances = optuna.importance.get_param_importances(study)
    for name, share in importances.items():
        print(f"importance of {name} = {share:.2f}")
    draw(importances, trials)
