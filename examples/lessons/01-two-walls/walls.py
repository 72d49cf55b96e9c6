"""The wall of memory and the wall of time: a training that fails by name, and what passes each."""

import multiprocessing
import os
import tempfile

import matplotlib.pyplot as plt
from train import state_mib, train

start_method = multiprocessing.get_context("fork")  # a new process has torch already


def one_rank(queue, *arguments):
    """Put what the training returns into the queue, or the error that ends it."""
    try:
        queue.put(train(*arguments))
    except RuntimeError as error:
        queue.put(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def run(techniques, limit, ranks):
    """Train in a process a rank. Returns what the rank with the highest peak returns."""
    queue = start_method.SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        arguments = [(queue, techniques, limit, rank, ranks, store) for rank in range(ranks)]
        processes = [start_method.Process(target=one_rank, args=of_rank) for of_rank in arguments]
        for process in processes:
            process.start()
        results = [queue.get() for _ in processes]
        for process in processes:
            process.join()
    return results[0] if ranks == 1 else max(results, key=lambda result: result["peak"])


def show(name, techniques, limit=0, ranks=1):
    """Train, and print the figures, or the name of the failure."""
    result = run(techniques, limit, ranks)
    if isinstance(result, str):
        print(f"{name}: does not fit. {result}")
        bars.append((name, 0, "does not fit"))
        return None
    print(f"{name}, peak of a process = {result['peak']:.0f} MiB")
    print(f"{name}, loss of the last step = {result['loss']:.5f}")
    print(f"{name}, step = {result['seconds']:.2f} s")
    bars.append((name, result["peak"], ""))
    return result


def draw():
    """A bar for each training, and the two limits."""
    grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys(grey, "#808080"))
    _, axis = plt.subplots(figsize=(6, 3.2))
    names, peaks, texts = zip(*reversed(bars), strict=True)
    colors = ["tab:orange" if "2 ranks" in name else "tab:blue" for name in names]
    axis.barh(names, peaks, color=colors)
    for number, text in enumerate(texts):
        axis.text(5, number, text, va="center", fontsize=8, color="tab:red")
    axis.axvline(first_limit, color="tab:red", ls="--")
    axis.axvline(second_limit, color="tab:red", ls=":")
    axis.tick_params(labelsize=8)
    axis.set_xlabel("peak MiB of a process (dashed: first limit, dotted: second limit)")
    axis.set_title("What passes the wall of memory", fontsize=10)
    plt.savefig("memory.svg", transparent=True, bbox_inches="tight")


bars = []
one = show("no limit, 1 process", "plain")
state = state_mib()
first_limit = round(state + 0.7 * (one["peak"] - state))
second_limit = round(0.95 * state)
print(f"weights, gradients and moments, computed = {state:.0f} MiB")

print("The first limit lies between them and the peak: the activations do not fit.")
print(f"first limit = {first_limit} MiB")
show("first limit", "plain", first_limit)
show("first limit, accumulation", "accumulation", first_limit)
show("first limit, checkpointing", "checkpointing", first_limit)
show("first limit, bf16", "bf16", first_limit)
show("first limit, ZeRO-1 on 2 ranks", "zero1", first_limit, 2)
show("first limit, FSDP2 on 2 ranks", "fsdp2", first_limit, 2)

print("The second limit lies below them: no way of computing the activations helps.")
print(f"second limit = {second_limit} MiB")
both = "accumulation+checkpointing"
show("second limit, accumulation and checkpointing", both, second_limit)
show("second limit, both and bf16", f"{both}+bf16", second_limit)
show("second limit, both and ZeRO-1 on 2 ranks", f"{both}+zero1", second_limit, 2)
show("second limit, both and FSDP2 on 2 ranks", f"{both}+fsdp2", second_limit, 2)

print("The wall of time: the same rows a step, half of them on each of two ranks.")
show("no limit, DDP on 2 ranks", "ddp", 0, 2)
seconds = [run("timed", 0, 1)["seconds"], run("timed+ddp", 0, 2)["seconds"]]
print(f"1,000 steps, 1 process = {1000 * seconds[0] / 60:.1f} min")
print(f"1,000 steps, 2 ranks = {1000 * seconds[1] / 60:.1f} min")
print(f"speed-up of 2 ranks = {seconds[0] / seconds[1]:.2f}")
draw()
