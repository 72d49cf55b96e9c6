"""torch.profiler on 20 steps, its trace read back: which operators take the time."""

import json
import os
import sys
import time
from collections import defaultdict

os.environ["USE_TF"] = "0"  # transformers would import TensorFlow, too
import matplotlib.pyplot as plt
import pyarrow.parquet as parquet
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoTokenizer, DistilBertModel

torch.set_num_threads(1)
texts = parquet.read_table(sys.argv[1])["text"].to_pylist()[::100]
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
model = DistilBertModel.from_pretrained(sys.argv[2]).train()
PARTS = ("load", "forward", "backward", "update")


def step(number, optimizer):
    """One step; record_function names its parts in the trace."""
    rows = texts[number * 8 : number * 8 + 8]
    with record_function("load"):
        batch = tokenizer(
            rows, truncation=True, max_length=32, padding="max_length", return_tensors="pt"
        )
    with record_function("forward"):
        loss = model(**batch).last_hidden_state.square().mean()
    with record_function("backward"):
        loss.backward()
    with record_function("update"):
        optimizer.step()
        optimizer.zero_grad()


def plain(optimizer):
    """Milliseconds a step, of ten, without a profiler."""
    step(0, optimizer)
    start = time.perf_counter()
    for number in range(10):
        step(number, optimizer)
    return (time.perf_counter() - start) * 100


default = torch.optim.AdamW(model.parameters(), lr=1e-5)
step(0, default)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    start = time.perf_counter()
    for number in range(20):
        step(number, default)
    profiled_ms = (time.perf_counter() - start) * 50
profiler.export_chrome_trace("trace.json")  # https://ui.perfetto.dev draws it

with open("trace.json") as file:
    events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
print(f"events in the trace = {len(events)}")
print(f"bytes of the trace = {os.path.getsize('trace.json')} bytes")
parts = {p: [e for e in events if e["name"] == p and e["cat"] == "user_annotation"] for p in PARTS}
for part, marks in parts.items():
    print(f"{part} = {sum(mark['dur'] for mark in marks) / 20e3:.1f} ms a step")

# An operator calls others: its own time is its duration less that of what lies directly inside.
self_time, calls = defaultdict(float), defaultdict(int)
for thread in {event["tid"] for event in events}:
    stack = []
    mine = [e for e in events if e["tid"] == thread and e["cat"] == "cpu_op"]
    for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
        while stack and event["ts"] >= stack[-1]["ts"] + stack[-1]["dur"]:
            stack.pop()
        if stack:
            self_time[stack[-1]["name"]] -= event["dur"]
        self_time[event["name"]] += event["dur"]
        calls[event["name"]] += 1
        stack.append(event)
largest = sorted(self_time, key=self_time.get, reverse=True)[:8]
total = sum(self_time.values())
for name in largest:
    share = self_time[name] / total
    print(f"{name} = {self_time[name] / 20e3:.2f} ms a step, {share:.0%} of all operators")
counted = {average.key: average.self_cpu_time_total for average in profiler.key_averages()}
gap = max(abs(self_time[name] - counted[name]) for name in largest)
print(f"largest difference to key_averages() = {gap / 20e3:.3f} ms a step")

fused = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)  # one operator for all weights
print(f"a step, profiled = {profiled_ms:.0f} ms")
print(f"a step, not profiled = {plain(default):.0f} ms")
print(f"a step, fused update = {plain(fused):.0f} ms")

for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
    plt.rcParams[part] = "#808080"
plt.figure(figsize=(6, 3.2), layout="tight")
plt.barh([name.removeprefix("aten::") for name in largest[::-1]],
         [self_time[name] / 20e3 for name in largest[::-1]])  # fmt: skip
plt.xlabel("milliseconds of its own a step")
plt.title("The largest operators of 20 steps")
plt.savefig("operators.svg", transparent=True)
