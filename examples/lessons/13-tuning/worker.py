"""One machine of the study; each runs this command, with the database's address and its number."""

import sys
import time

import optuna
import torch

url, machine = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
optuna.logging.set_verbosity(optuna.logging.WARNING)
EPOCHS, TRIALS = 10, 24
data = torch.load("features.pt")  # bags of words of 900 texts, and which package each is from


def objective(trial):
    """Accuracy on validation of the values that the trial suggests."""
    rate = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    width = trial.suggest_categorical("hidden_size", [64, 128, 256, 512])
    dropout = trial.suggest_float("dropout", 0.1, 0.5)
    batch_size = trial.suggest_categorical("batch_size", [32, 64, 128])
    trial.set_user_attr("machine", machine)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(data["train"].shape[1], width),
        torch.nn.ReLU(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(width, 9),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for epoch in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(data["train"])).split(batch_size):
            loss = torch.nn.functional.cross_entropy(model(data["train"][rows]), data["y"][rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        accuracy = (model(data["validation"]).argmax(1) == data["z"]).float().mean().item()
        trial.report(accuracy, epoch)  # a row in the database, which every machine can see
        time.sleep(0.1)  # stands for a larger model: a trial lasts a second at least
    return accuracy


def quick(trial):
    """A trial that takes no time."""
    return trial.suggest_float("x", -1, 1) ** 2


storage = optuna.storages.RDBStorage(
    url,
    heartbeat_interval=1,  # seconds: a thread writes "alive" into the database
    grace_period=5,  # a trial without a heartbeat for so long has failed
    heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=2),
)
# `n_trials` counts the trials of THIS process: three machines run three times as many.
optuna.load_study(study_name="n_trials of each", storage=storage).optimize(quick, n_trials=5)
# What the machines share is the database: so count what is complete there.
enough = optuna.study.MaxTrialsCallback(TRIALS, states=(optuna.trial.TrialState.COMPLETE,))
# A constant liar: trials that still run count as bad ones, so that no two machines try the same.
sampler = optuna.samplers.TPESampler(seed=machine, constant_liar=True)
study = optuna.load_study(study_name="texts", storage=storage, sampler=sampler)
study.optimize(objective, callbacks=[enough])
