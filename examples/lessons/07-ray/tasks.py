"""Remote functions and actors: python tasks.py [FILES]

The two snippets of every introduction, with what they leave out: what a call costs, and what the
concatenated results of the files are.
"""

import os
import sys
import time

import numpy as np
import pandas as pd
from one_node import ray_of_one_node

FILES = int(sys.argv[1]) if len(sys.argv) > 1 else 16
ROWS, USERS = FILES * 100_000, 5_000
os.makedirs("events", exist_ok=True)
random = np.random.default_rng(0)
paths = [f"events/{number}.csv" for number in range(FILES)]
for path in paths:
    events = {
        "user_id": random.integers(0, USERS, ROWS // FILES),
        "amount": random.integers(1, 100, ROWS // FILES),
        "timestamp": random.integers(1_700_000_000, 1_800_000_000, ROWS // FILES),
    }
    pd.DataFrame(events).to_csv(path, index=False)


def features_of(path: str) -> pd.DataFrame:
    """The features of each user in one file."""
    users = pd.read_csv(path).groupby("user_id")
    return users.agg(events=("amount", "size"), amount=("amount", "sum"), last=("timestamp", "max"))


def double_of_mean(batch: np.ndarray) -> float:
    """Twice the mean: too little work for a task."""
    return float(np.mean(batch) * 2)


def seconds(function) -> tuple[float, object]:
    """How long a call takes, and its result."""
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


with ray_of_one_node(cpus=2) as ray:
    remote_features = ray.remote(features_of)  # the same as @ray.remote above the function
    remote_mean = ray.remote(double_of_mean)

    @ray.remote
    def process_id() -> int:
        """The worker that runs this call."""
        import pandas  # noqa: F401 - so that its import is not in what is measured below

        time.sleep(0.5)  # long enough that both workers get one
        return os.getpid()

    workers = set(ray.get([process_id.remote() for _ in range(2)]))
    print(f"A call goes to one of {len(workers)} worker processes, none of which is this one.\n")

    print("1. A call is not free: 100 batches of 1,000 numbers, the mean of each.")
    batches = [random.random(1000) for _ in range(100)]
    alone, means = seconds(lambda: [double_of_mean(batch) for batch in batches])
    tasks, same = seconds(lambda: ray.get([remote_mean.remote(batch) for batch in batches]))
    print(f"100 means in a loop = {alone * 1000:.1f} ms")
    print(f"100 means by Ray's tasks = {tasks * 1000:.1f} ms")
    print(f"batches with the same mean by both = {sum(np.equal(means, same))}\n")

    print(f"2. A file is work enough for a task: {FILES} CSV files, {ROWS:,} events.")
    alone, plain = seconds(lambda: [features_of(path) for path in paths])
    absolute = [os.path.abspath(path) for path in paths]  # a worker has its own directory
    tasks, parts = seconds(lambda: ray.get([remote_features.remote(path) for path in absolute]))
    print(f"files one after the other = {alone:.2f} s")
    print(f"files by tasks on two cores = {tasks:.2f} s")
    print(f"files with the same features by both = {sum(map(pd.DataFrame.equals, plain, parts))}\n")

    print("3. pd.concat of the parts is not the result: a user is in it once for each file.")
    together = pd.concat(parts)
    whole = pd.concat(map(pd.read_csv, paths)).groupby("user_id")
    whole = whole.agg(
        events=("amount", "size"), amount=("amount", "sum"), last=("timestamp", "max")
    )
    # Sums and largest values can be combined again; a mean or a median could not.
    combined = together.groupby("user_id").agg({"events": "sum", "amount": "sum", "last": "max"})
    print(f"users = {len(whole)}")
    print(f"rows after pd.concat = {len(together)}")
    print(f"rows after a second groupby = {len(combined)}")
    print(f"users with other features than in one pass = {(whole != combined).any(axis=1).sum()}\n")

    @ray.remote(max_restarts=1, max_task_retries=-1)  # a call waits for the restart
    class Counter:
        """State in a process of its own; its methods run one after the other."""

        def __init__(self) -> None:
            self.value = 0

        def increment(self) -> int:
            """Add one."""
            self.value += 1  # no lock: two calls never run at once
            return self.value

    @ray.remote
    def count(counter, times: int) -> None:
        """Add one, many times."""
        ray.get([counter.increment.remote() for _ in range(times)])

    print("4. An actor: four tasks add to one counter, 250 times each.")
    counter = Counter.remote()
    took, _ = seconds(lambda: ray.get([count.remote(counter, 250) for _ in range(4)]))
    print(f"calls per second to one actor = {1000 / took:.0f} /s")
    print(f"count after 1,000 increments = {ray.get(counter.increment.remote()) - 1}")
    ray.kill(counter, no_restart=False)  # as a node's loss would; Ray starts it again
    time.sleep(1)
    print(f"count after the actor's restart = {ray.get(counter.increment.remote()) - 1}")
    print("Ray restarts the process, not its state: what must last is saved by the actor itself.")
