"""Ray Tune runs the study of a section `tune`: the same space, by Ray's ASHA and OptunaSearch.

    python examples/ray_tune.py study.yaml

Each trial is `howdah train` in a directory trials/<number>, as in a study of `howdah tune`; page
and best.json come from these run directories, those of this start alone. It has no leases and no
retries, and other machines cannot join.
"""

import contextlib
import functools
import itertools
import json
import os
import sys
import time

import verdict


def trial(params: dict, words: dict) -> None:
    """Run one trial in a process of Ray; ending it early makes the training save and end."""
    from ray import tune

    from howdah.config.loader import load
    from howdah.core.child import Child
    from howdah.models.runs.run_json import freeze_config
    from howdah.tuning.running import evaluations
    from howdah.tuning.space import trial_config

    config = load(words["config"])
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory := f"{config.run.directory}/trials/{number}", mode=0o750)
            break
    ours = trial_config(
        config, params, number=number, directory=directory, datasets=words["datasets"], threads=1
    )
    train = ["train", "--config", freeze_config(ours, directory)]
    log, seen, over = f"{directory}/train.log", 0, False
    command = [sys.executable, "-m", "howdah.cli", *train]
    with Child(command, output=log, grace=config.checkpoint.grace_seconds) as child:
        while not over:
            over = not child.alive
            for value in list(evaluations(directory, words["metric"]).values())[seen:]:
                seen += 1
                tune.report({words["metric"]: value})  # raises SystemExit once ASHA stops the trial
            time.sleep(0.2)
    if child.code:
        raise RuntimeError(f"howdah train has ended with {child.code}: {log}")


def start(config_path: str, config) -> None:
    """Start Ray and the study; wait until all trials have saved."""
    from howdah.serving.deployment.own_ray import own_ray
    from howdah.training.run.local_dir import RunLock
    from howdah.tuning import space, study

    study.library()
    goal, options = space.objective_of(config), config.tune
    words = {"config": os.path.abspath(config_path), "metric": goal.metric,
             "datasets": space.check(config, np=1)}  # fmt: skip
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # relative paths mean the same in Ray's processes
    # Ray would kill a pruned trial's training with its worker, while it saves.
    os.environ["RAY_kill_child_processes_on_worker_exit"] = "false"  # noqa: SIM112 - its name
    os.makedirs(trials := f"{config.run.directory}/trials", exist_ok=True)
    with own_ray(options.parallel):
        from ray import tune
        from ray.tune.schedulers import ASHAScheduler
        from ray.tune.search.optuna import OptunaSearch

        best = {"metric": goal.metric, "mode": goal.direction[:3]}
        tuned = tune.TuneConfig(
            num_samples=options.trials, max_concurrent_trials=options.parallel,
            search_alg=OptunaSearch(
                space.distributions(options), seed=config.training.seed, **best
            ),
            scheduler=ASHAScheduler(
                max_t=10**4, grace_period=1,
                reduction_factor=study.REDUCTION_FACTOR, **best,
            ),
        )  # fmt: skip
        run = tune.RunConfig(storage_path=os.path.abspath(f"{config.run.directory}/ray"), verbose=0)
        try:
            tune.Tuner(
                tune.with_parameters(trial, words=words), tune_config=tuned, run_config=run
            ).fit()
        finally:
            for name in os.listdir(trials):
                lock = RunLock(f"{trials}/{name}", ".launch.lock", name)
                lock.take(patience=config.checkpoint.grace_seconds + 30)
                lock.release()


def numbers(config) -> frozenset[int]:
    """The numbers of the trials that the run directory has."""
    try:
        names = os.listdir(f"{config.run.directory}/trials")
    except FileNotFoundError:
        return frozenset()
    return frozenset(int(name) for name in names if name.isdigit())


def summary(config, before: frozenset[int]):
    """The study, in the form that `howdah tune` uses, without the trials from before its start."""
    from howdah import storage
    from howdah.config.loader import load
    from howdah.tuning.running import evaluations, final_value
    from howdah.tuning.space import objective_of
    from howdah.tuning.summary import Study, Trial

    metric, trials = objective_of(config).metric, []
    for number in sorted(numbers(config) - before):
        directory = f"{config.run.directory}/trials/{number}"
        if not storage.exists(f"{directory}/run.json"):
            trials.append(Trial(number=number, state="failed"))
            continue
        value, run = final_value(directory, metric)
        state = {"finished": "finished", "interrupted": "pruned"}.get(run["status"], "failed")
        plain = load(f"{directory}/config.yaml").model_dump()
        params = {
            key: functools.reduce(dict.get, key.split("."), plain) for key in config.tune.space
        }
        trials.append(Trial(
            number=number, state=state, params=params, value=value if state == "finished" else None,
            evaluations=evaluations(directory, metric), steps=run.get("steps"),
        ))  # fmt: skip
    log = frozenset(key for key, one in config.tune.space.items() if one.log)
    return Study(name=config.run.name, directory=config.run.directory, metric=metric,
                 trials=tuple(trials), log_scaled=log)  # fmt: skip


def judge(config, before: frozenset[int], raised: Exception | None) -> None:
    """Write the page and best.json; raise TrainingError if no new trial has finished."""
    from howdah import storage
    from howdah.config.loader import dump_yaml
    from howdah.errors import TrainingError
    from howdah.tuning import page, tune

    study = summary(config, before)
    directory = config.run.directory
    storage.write_whole(f"{directory}/{page.PAGE}", page.render(study, dump_yaml(config)).encode())
    made = study.as_dict()
    if raised is not None or study.best is None:
        raise TrainingError("no trial has finished", where=directory, got=str(raised or made))
    storage.write_whole(f"{directory}/{tune.BEST}", json.dumps(made, indent=1).encode())
    print(f"best: trial {study.best.number}, {study.metric} {study.best.value:.4f}")


if __name__ == "__main__":
    sys.exit(verdict.main(start, numbers, judge))
