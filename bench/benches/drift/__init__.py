"""Drift: verdicts beside Evidently's on the same rows, and what each costs.

Evidently needs an environment of its own: set HOWDAH_BENCH_EVIDENTLY to its Python (`pip install
evidently==0.7.23 "pandas<3"`). Without it, ours alone is timed, and a line says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from howdah.models.profile import reference as references
from howdah.models.profile.profile import Profile
from howdah.models.profile.statistics import js_distance, psi
from howdah.serving.drift.judge import judge

CLASSES, VOCABULARY = 4, 3000
PEER = Path(__file__).parent / "evidently_drift.py"
ROWS = 300
SHIFTS = ("same source", "3 of 4 of a class gone", "cut at six words", "other texts")


def rows(random: np.random.Generator, count: int, shift: str) -> dict[str, np.ndarray | list]:
    """Scores, ids and rightness of simulated rows: Zipf's words with a topic for each class."""
    share = [0.4, 0.3, 0.2, 0.1]
    if shift == "3 of 4 of a class gone":
        share = [0.1 / 0.7, 0.3 / 0.7, 0.2 / 0.7, 0.1 / 0.7]
    label_N = random.choice(CLASSES, count, p=share)
    length_N = np.clip(random.lognormal(3.0, 0.6, count).astype(int), 3, 120)
    hard = shift in ("cut at six words", "other texts")
    if shift == "cut at six words":
        length_N = np.minimum(length_N, 6)
    weights = 1 / np.arange(1, VOCABULARY - 3) ** 1.1
    ids_N = []
    for label, length in zip(label_N, length_N, strict=True):
        cumulated = np.cumsum(weights + np.roll(weights, 40 * label))
        words = 4 + np.searchsorted(cumulated, random.random(length) * cumulated[-1])
        if shift == "other texts":
            words = 4 + random.integers(0, VOCABULARY - 4, length)
        ids_N.append(np.array([1, *words, 2]))
    top_N = 0.25 + 0.75 * (random.beta(3, 1.5, count) if hard else random.beta(6, 1.2, count))
    right_N = random.random(count) < top_N
    answer_N = np.where(right_N, label_N, (label_N + 1) % CLASSES)
    scores_NC = np.repeat((1 - top_N)[:, None] / (CLASSES - 1), CLASSES, axis=1)
    scores_NC[np.arange(count), answer_N] = top_N
    return {"scores": scores_NC.astype(np.float32), "ids": ids_N, "right": right_N}


def _saved(path: str, rows: dict, counts) -> str:
    scores_NC = rows["scores"]
    np.savez(
        path, label=scores_NC.argmax(1), confidence=scores_NC.max(1).astype(float),
        length=np.array([len(ids) for ids in rows["ids"]]), bins_confidence=counts.confidence,
        bins_length=counts.length,
    )  # fmt: skip
    return path


def main() -> None:
    """Print a line for each shift and side."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import howdah.serving.drift.judge"], check=True)
    print(f"ours: import {time.perf_counter() - began:.2f} s (a process)")
    random = np.random.default_rng(0)
    held, train = rows(random, 2000, "same source"), rows(random, 6000, "same source")
    began = time.perf_counter()
    reference = references.make(
        held["scores"], held["right"], task="single_label", labels=list("abcd"),
        split="validation", train=references.Tokens.of(train["ids"]),
        held_out=references.Tokens.of(held["ids"]),
        tokenizer=references.Tokenizer(vocabulary=VOCABULARY, special=(0, 1, 2), unknown=3),
    )  # fmt: skip
    print(f"ours: profile of the model {time.perf_counter() - began:.2f} s,"
          f" {len(reference.to_bytes()):,} bytes")  # fmt: skip
    python = os.environ.get("HOWDAH_BENCH_EVIDENTLY")
    if not python:
        print("Evidently is left out: HOWDAH_BENCH_EVIDENTLY names no Python that has it")
    # The peer's reference is the validation split for all three columns.
    peer_reference = Profile.like(reference)
    peer_reference.add(held["scores"], held["ids"])
    with tempfile.TemporaryDirectory() as folder:
        for shift in SHIFTS:
            current = rows(random, ROWS, shift)
            began = time.perf_counter()
            profile = Profile.like(reference)
            profile.add(current["scores"], current["ids"])
            verdict = judge(reference, profile)
            took = time.perf_counter() - began
            alarms = ", ".join(column.name for column in verdict.alarms) or "none"
            print(f"{shift}: ours {1000 * took:.1f} ms, alarms: {alarms}")
            if python:
                _peer(python, folder, held, peer_reference, current, profile, shift)


def _peer(python: str, folder: str, held, reference, current, profile, shift: str) -> None:
    paths = [
        _saved(f"{folder}/reference.npz", held, reference.counts),
        _saved(f"{folder}/current.npz", current, profile.counts),
    ]
    done = subprocess.run(
        [python, str(PEER), *paths, f"{folder}/page.html"], capture_output=True, text=True
    )
    if done.returncode:
        print(f"{shift}: Evidently failed: {done.stderr.strip().splitlines()[-1]}")
        return
    result = json.loads(done.stdout.strip().splitlines()[-1])
    drifted = ", ".join(f"{name} {value:.3f}" for name, value in result["found"].items())
    print(f"{shift}: Evidently import {result['import']:.1f} s, run {result['run']:.1f} s, page"
          f" {result['page']:,} bytes; PSI: {drifted}")  # fmt: skip
    for name in ("confidence", "length"):
        old_B, new_B = getattr(reference.counts, name), getattr(profile.counts, name)
        same = result["same"][name]
        # A bin without rows is filled in another way there.
        if (old_B > 0).all() and (new_B > 0).all():
            ours = {"psi": psi(old_B, new_B), "js": js_distance(old_B, new_B) * np.log(2) ** 0.5}
            apart = max(abs(ours[key] - same[key]) for key in ours)
            print(f"{shift}: {name} on the same bins: at most {apart:.1e} apart")
