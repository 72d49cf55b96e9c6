"""Ray Tune launches Ray Train: each trial trains on two ranks: python tune.py [TRIALS]

OptunaSearch proposes the learning rate and the width, ASHA ends the worst trials early.
"""

import contextlib
import os
import sys
import time

import matplotlib
from one_node import ray_of_one_node

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TRIALS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
EPOCHS, AT_ONCE, RANKS = 8, 2, 2


def train_ranks(config: dict) -> None:
    """One rank of a trial: a small network on scikit-learn's digits."""
    import torch
    from ray import train
    from ray.train.torch import prepare_model
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    mine = torch.arange(train.get_context().get_world_rank(), 1400, RANKS)
    net = torch.nn.Sequential(torch.nn.Linear(64, config["width"]), torch.nn.ReLU(),
                              torch.nn.Linear(config["width"], 10))  # fmt: skip
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for epoch in range(1, EPOCHS + 1):
        for rows in mine.split(16):
            loss = torch.nn.functional.cross_entropy(model(pixels[rows]), digits[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = model(pixels[1400:]).argmax(1) == digits[1400:]
        train.report({
            "accuracy": right.float().mean().item(), "epoch": epoch,
            "ranks": train.get_context().get_world_size(), "at": time.time(),
            "cores": len(os.sched_getaffinity(0)),
        })  # fmt: skip


def trial(config: dict) -> None:
    """One trial: a process that starts a whole trainer. It waits, so a fifth of a CPU will do."""
    from ray import train, tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    TorchTrainer(
        train_ranks,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 0.4}),
        run_config=train.RunConfig(
            name=tune.get_context().get_trial_id(), storage_path=config["results"],
            callbacks=[TuneReportCallback()],  # hands rank 0's reports on to Tune, and so to ASHA
        ),
    ).fit()  # fmt: skip


# Tune kills a trial that ends early; Ray Train frees its ranks' CPUs only after it has asked the
# dashboard whether the trial lives. Without a dashboard the third trial waits for ever.
with ray_of_one_node(cpus=2, dashboard=True) as ray:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    started = time.time()
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.2}),
        param_space={
            "lr": tune.loguniform(1e-4, 1.0), "width": tune.choice([16, 64]),
            "results": os.path.abspath("results"),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=TRIALS, max_concurrent_trials=AT_ONCE,
            search_alg=OptunaSearch(seed=0),
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name="study", storage_path=os.path.abspath("results"), verbose=0),
    )  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):  # Tune prints tables
        results = tuner.fit()
    seconds = time.time() - started

trials = [result.metrics_dataframe.sort_values("epoch") for result in results]
configs = [result.config for result in results]
print(f"{TRIALS} trials, {AT_ONCE} at once; each reserves 0.4 CPUs for a rank, 0.2 for itself.\n")
print("trial  lr       width  epochs  accuracy")
for number, (run, config) in enumerate(zip(trials, configs, strict=True)):
    best = run.accuracy.iloc[-1]
    print(f"{number:5}  {config['lr']:.5f}  {config['width']:5}  {len(run):6}  {best:8.3f}")
print(f"\nfailed trials = {results.num_errors}")
print(f"ranks of each trial = {max(run.ranks.max() for run in trials)}")
print(f"trials that ASHA ended early = {sum(len(run) < EPOCHS for run in trials)}")
print(f"epochs trained = {sum(map(len, trials))}")
print(f"epochs without ASHA = {TRIALS * EPOCHS}")
print(f"best accuracy = {results.get_best_result().metrics['accuracy']:.3f}")
print(f"cores that a rank of 0.4 CPUs may use = {trials[0].cores.iloc[0]}")
print(f"the study = {seconds:.0f} s")
inside = sum(run["at"].iloc[-1] - run["at"].iloc[0] for run in trials)
print(f"of it between the first and the last report, all trials = {inside:.1f} s")

grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(grey, "#808080"))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for run, config in zip(trials, configs, strict=True):
    axes.plot(run.epoch, run.accuracy, marker="o", label=f"lr {config['lr']:.2g}")
axes.spines[["top", "right"]].set_visible(False)
axes.set(xlabel="epoch", ylabel="accuracy", title="ASHA ends the worst trials early")
axes.legend(frameon=False, fontsize="small", bbox_to_anchor=(1, 1), loc="upper left")
figure.savefig("tune.svg", transparent=True)
