"""What sums of gradients add to a step between hosts, beside torch's DDP and Horovod's optimizer.

Each rank is on a host of its own: a network namespace behind a link that `tc tbf` cuts to a rate in
both directions (root, `ip` and `tc`). One thread a rank, half of the batch each; what a single rank
takes for half of the batch is taken off. All texts have 40 tokens: where steps differ in length,
their compute would be taken for the network's. fp32. Compute and transport share this machine's
cores. Then the same with compute replaced by a sleep (network/timed.py): a simulation.

BENCH_ROUNDS (3), BENCH_STEPS (12), BENCH_LINKS ("200mbit 1gbit"), BENCH_SIZE (minilm or base),
BENCH_RANKS (2), BENCH_KINDS (all of PEERS and OURS), BENCH_PARTS ("steps timed"). A round is kept
as it ends, and a run takes up those of the same settings.

Bars: float32 <= 0.4x of DDP's added time, bf16 <= 0.4x and int8 <= 0.2x of DDP's with its bf16
hook.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time

from bench import harness
from bench.benches.network import timed
from bench.training_runs import BATCH, Bench
from howdah.config import loader
from tests.runs.network import gloo_ranks, shaped_hosts
from tests.runs.network.shaped_hosts import ShapedHosts
from tests.runs.training_runs import ROOT

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
STEPS = int(os.environ.get("BENCH_STEPS", "12"))
LINKS = os.environ.get("BENCH_LINKS", "200mbit 1gbit").split()
SIZE = os.environ.get("BENCH_SIZE", "minilm")
RANKS, WARM = int(os.environ.get("BENCH_RANKS", "2")), 4
PEERS = ("ddp", "ddp-bf16", "ddp-powersgd", "horovod", "horovod-fp16")
OURS = {
    f"{framework}-{compression}": (framework, comm, compression)
    for framework, comm in (("torch", "torch"), ("tensorflow", "horovod"))
    for compression in ("none", "bf16", "int8")
}
KINDS = os.environ.get("BENCH_KINDS", " ".join((*PEERS, *OURS))).split()
PARTS = os.environ.get("BENCH_PARTS", "steps timed").split()
BARS = {
    "none": ("ddp", "<= 0.4x"),
    "bf16": ("ddp-bf16", "<= 0.4x"),
    "int8": ("ddp-bf16", "<= 0.2x"),
}
SOURCES = ("training", "bench/benches/network",
           "bench/peers/plain_torch.py")  # fmt: skip


class Network:
    """Runs of ranks on several hosts.

    Args:
        bench: the dataset and the base.
        hosts: the hosts.
        each: ranks of a host.
    """

    def __init__(self, bench: Bench, hosts: ShapedHosts, each: int = 1) -> None:
        self._bench, self._hosts, self._each = bench, hosts, each

    def peer(self, kind: str) -> list[float]:
        """Seconds of each step of a peer, the first ones left out."""
        folder = tempfile.mkdtemp(dir=self._bench.folder)
        job, out = f"{folder}/job.json", f"{folder}/seconds.json"
        with open(job, "w", encoding="utf-8") as file:
            json.dump({"dataset": f"{self._bench.folder}/data", "base": self._bench.base,
                       "steps": WARM + STEPS, "batch": BATCH, "threads": 1}, file)  # fmt: skip
        self.run(["bench.benches.network.peers", kind, job, out])
        with open(out, encoding="utf-8") as file:
            return json.load(file)[WARM:]

    def ours(self, framework: str, comm: str, compression: str) -> list[float]:
        """Seconds of each step of ours, the first ones left out."""
        directory = tempfile.mkdtemp(dir=self._bench.folder)
        path = f"{directory}.yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(settings(self._bench, directory, framework, BATCH, {
                "comm": comm, "gradient_compression": compression})))  # fmt: skip
        self.run(["howdah.training", "--config", path], of_torch=comm == "torch")
        return step_seconds(directory, BATCH)

    def run(self, module: list[str], *, of_torch: bool | None = None) -> None:
        """Run a module as the ranks of each host.

        Args:
            of_torch: whether its ranks meet as torch's do; None: as the name says.
        """
        hosts = self._hosts
        if of_torch is None:
            of_torch = module[1].startswith("ddp")
        env = os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0"}
        meeting = gloo_ranks.Rendezvous(address=hosts.address, interface="eth0", one_host=False)
        argvs = []
        for rank in range(len(hosts.names) * self._each):
            host = rank // self._each
            # A name of its own, since torch's ranks compare the names of their hosts.
            renamed = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"',
                       hosts.names[host]]  # fmt: skip
            world = {"RANK": rank, "WORLD_SIZE": len(hosts.names) * self._each,
                     "LOCAL_RANK": rank % self._each, "LOCAL_WORLD_SIZE": self._each,
                     "MASTER_ADDR": hosts.address_of(0), "MASTER_PORT": 29500,
                     "GLOO_SOCKET_IFNAME": "eth0"}  # fmt: skip
            clean = [word for key in meeting.variables(0, 1) for word in ("-u", key)]
            words = ["env", *clean, *(f"{key}={value}" for key, value in world.items())]
            argvs.append(hosts.inside(host, [*renamed, *(words if of_torch else ()), sys.executable,
                                             "-m", *module]))  # fmt: skip
        try:
            done = gloo_ranks.run(argvs, env, meeting, timeout=900)
        finally:
            meeting.close()
        if any(code for code, _ in done):
            ends = "\n\n".join(output[-3000:] for _, output in done)
            raise SystemExit(f"{' '.join(module)}:\n{ends}")


def settings(bench: Bench, directory: str, framework: str, batch: int, training: dict):
    """The configuration of a short run."""
    return loader.from_dict({
        "run": {"name": "bench", "directory": directory},
        "data": {"dataset": f"{bench.folder}/data"},
        "model": {"base": bench.base},
        "training": {"framework": framework, "global_batch_size": batch, "precision": "fp32",
                     "max_steps": WARM + STEPS, "logging_steps": 1, "threads_per_rank": 1,
                     **training},
        "checkpoint": {"every_minutes": None, "every_epoch": False},
        "evaluation": {"splits": []},
        "tracking": {"tensorboard": False},
    })  # fmt: skip


def step_seconds(directory: str, batch: int) -> list[float]:
    """Seconds of each step of a run of ours, the first ones left out."""
    with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    rates = [line["examples_per_second"] for line in lines if line.get("examples_per_second")]
    return [batch / rate for rate in rates][WARM:]


def one_round(bench: Bench, link: str) -> dict[str, float]:
    """Added ms a step of each of KINDS, in turn."""
    one_thread = ("training.threads_per_rank=1", "training.precision=fp32")
    ours = [kind for kind in KINDS if kind in OURS]
    alone = {framework: statistics.median(
                 bench.ours(framework, batch=BATCH // RANKS, set_=one_thread).seconds)
             for framework in dict.fromkeys(OURS[kind][0] for kind in ours)}  # fmt: skip
    if len(ours) < len(KINDS):
        alone["peer"] = statistics.median(bench.ddp(1, BATCH // RANKS))
    added = {}
    with ShapedHosts(RANKS, link) as hosts:
        network = Network(bench, hosts)
        for kind in KINDS:
            begun = time.monotonic()
            both = network.ours(*OURS[kind]) if kind in OURS else network.peer(kind)
            single = alone[OURS[kind][0] if kind in OURS else "peer"]
            added[kind] = 1000 * (statistics.median(both) - single)
            print(f"{link} {kind}: adds {added[kind]:.0f} ms to a step of {1000 * single:.0f} ms,"
                  f" {time.monotonic() - begun:.0f} s", file=sys.stderr)  # fmt: skip
    return added


def steps() -> list[harness.Row]:
    """All links with real steps; a kind without its peer in KINDS is only printed."""
    rows = []
    journal = harness.Rounds(
        "network", sources=SOURCES, steps=STEPS, batch=BATCH, size=SIZE, ranks=RANKS, kinds=KINDS
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, size=SIZE, texts="even", rows=4_000, steps=STEPS)
        for link in LINKS:
            rounds = journal.up_to(ROUNDS, link, lambda link=link: one_round(bench, link))
            for name in KINDS:
                peer, bar = BARS[OURS[name][2]] if name in OURS else ("ddp", None)
                if name != peer and peer in KINDS:
                    rows.append(harness.Row(
                        what=f"{link}: np={RANKS} adds to a step, {name}", unit="ms", peer=peer,
                        peer_values=[one[peer] for one in rounds],
                        our_values=[one[name] for one in rounds], lower_is_better=True, bar=bar,
                    ))  # fmt: skip
    return rows


def main() -> None:
    """BENCH_PARTS: steps, and the simulation."""
    if shaped_hosts.MISSING:
        print(f"bench network: {shaped_hosts.REASON}")
        return
    rows = steps() if "steps" in PARTS else []
    if "timed" in PARTS:
        rows += timed.rows()
    harness.report("network", rows, steps=STEPS, rounds=ROUNDS, size=SIZE, ranks=RANKS)


if __name__ == "__main__":
    main()
