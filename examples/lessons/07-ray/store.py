"""The object store: one array in shared memory, four readers: python store.py [MEGABYTES]

Linux says for each process which of its resident memory is shared, and by how many processes
(/proc/self/smaps_rollup): "proportional" is a process's share of it, so that the sum over all
processes is what the machine needs.
"""

import sys
import time

import matplotlib
import numpy as np
from one_node import ray_of_one_node

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MEGABYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 400
READERS = 4
NUMBERS = 300_000  # in the list of Python objects


def memory() -> dict[str, float]:
    """Megabytes of this process: resident, its proportional share, and what is its alone."""
    with open("/proc/self/smaps_rollup") as file:
        mb = {line.split()[0][:-1]: int(line.split()[1]) * 1024e-6 for line in list(file)[1:]}
    private = mb["Private_Clean"] + mb["Private_Dirty"]
    return {"resident": mb["Rss"], "proportional": mb["Pss"], "private": private}


class Reader:
    """A process that gets objects out of the store and keeps them."""

    def get(self, refs: list) -> dict:
        """Get one object: seconds, what it is, and its sum."""
        import ray

        self.before = memory()
        started = time.perf_counter()
        # A reference in a list arrives as a reference; as an argument of its own, the object.
        self.held = ray.get(refs[0])
        took = time.perf_counter() - started
        array = isinstance(self.held, np.ndarray)
        writable = not array or self.held.flags.writeable
        total = float(self.held.sum() if array else sum(self.held))  # touches every page
        return {"seconds": took, "sum": total, "writable": writable}

    def copy(self) -> float:
        """Copy the array, as a reader must that wants to write: seconds."""
        started = time.perf_counter()
        self.copied = self.held.copy()
        return time.perf_counter() - started

    def grown(self) -> dict[str, float]:
        """Megabytes more than before `get`."""
        return {key: value - self.before[key] for key, value in memory().items()}


def mean(values: list[float]) -> float:
    """The mean of a list."""
    return sum(values) / len(values)


with ray_of_one_node(store=(MEGABYTES + 100) * 10**6) as ray:

    def readers() -> list:
        """New processes: memory that was freed would hide what is needed next."""
        return [ray.remote(num_cpus=0)(Reader).remote() for _ in range(READERS)]

    array = np.random.default_rng(0).random(MEGABYTES * 10**6 // 8)
    started = time.perf_counter()
    ref = ray.put(array)
    print(f"One array of {MEGABYTES} MB, {READERS} readers, each a process that keeps it.\n")
    print(f"put into the store = {time.perf_counter() - started:.2f} s")
    group = readers()
    answers = ray.get([one.get.remote([ref]) for one in group])  # all hold it at the same time
    shared = ray.get([one.grown.remote() for one in group])
    print(f"get by a reader = {mean([one['seconds'] for one in answers]) * 1000:.1f} ms")
    same = sum(bool(np.isclose(one["sum"], array.sum(), rtol=1e-12)) for one in answers)
    print(f"readers with the same sum = {same}")
    print(f"resident memory a reader grew by = {mean([one['resident'] for one in shared]):.0f} MB")
    share = sum(one["proportional"] for one in shared)
    print(f"memory that all four readers together add = {share:.0f} MB")
    print(f"private memory a reader grew by = {mean([one['private'] for one in shared]):.1f} MB")
    print(f"readers that may write into the array = {sum(one['writable'] for one in answers)}\n")

    print("A reader that wants to change it must copy it; then it is a copy for each.")
    took = ray.get([one.copy.remote() for one in group])
    copied = ray.get([one.grown.remote() for one in group])
    print(f"copy by a reader = {mean(took) * 1000:.0f} ms")
    has = mean([one["private"] for one in copied])
    print(f"private memory a reader has after its copy = {has:.0f} MB\n")
    for one in group:
        ray.kill(one)

    print(f"Zero copy is for buffers (numpy, Arrow). A list of {NUMBERS:,} Python floats is read")
    print("into objects by every reader:")
    numbers = ray.put(array[:NUMBERS].tolist())
    group = readers()
    answers = ray.get([one.get.remote([numbers]) for one in group])
    listed = mean([one["private"] for one in ray.get([one.grown.remote() for one in group])])
    print(f"private memory a reader grew by for the list = {listed:.1f} MB")
    print(f"the same numbers as an array would be = {NUMBERS * 8 / 1e6:.1f} MB")

grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(grey, "#808080"))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
copies = sum(one["private"] for one in copied)
names = ["resident\n(each)", "private\n(each)", "together\n(four)", "together, had\neach copied it"]
private = mean([one["private"] for one in shared])
heights = [mean([one["resident"] for one in shared]), private, share, share + copies]
bars = axes.bar(names, heights, color=["tab:blue", "tab:green", "tab:green", "tab:orange"])
axes.bar_label(bars, fmt="%.0f MB", color="#808080")
axes.spines[["top", "right"]].set_visible(False)
axes.set_ylabel("MB")
axes.set_title(f"Four processes read one array of {MEGABYTES} MB")
figure.savefig("store.svg", transparent=True)
