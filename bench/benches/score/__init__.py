"""Processor time a text, one thread: ours (torch, onnx, onnx-w8, onnx-int8) beside its peers.

Peers: transformers.pipeline("text-classification"); the export's model.onnx in onnxruntime and in
OpenVINO as they come, and quantised by NNCF (bench/peers/classifiers.py: batches of 32 texts sorted
by length); Infinity. Text Embeddings Inference is a container image, no package: it is not here.

Single texts one after the other, and all in one call; every classifier is a process of its own, and
they take turns. MiniLM-L6 as a DistilBERT, on first sentences of docstrings of this environment;
BENCH_MODEL names another export. Bars: onnx 0.5 of the pipeline's in bulk, 0.6 single; onnx-int8
2.0 ms in bulk, and less than each peer.

Environment: BENCH_ROUNDS (5), BENCH_TEXTS (300), BENCH_MODEL; BENCH_PEERS, the Python of an
environment with OpenVINO, NNCF and Infinity (without it one is made, which takes minutes).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

from bench import harness
from bench.peers.classifiers import OTHERS, PACKAGES, PIPELINE, RUNTIME

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
TEXTS = int(os.environ.get("BENCH_TEXTS", "300"))
OURS = ("onnx", "onnx-w8", "onnx-int8", "torch")
PEERS = (PIPELINE, RUNTIME, *OTHERS)
BARS = {"single": 0.6, "bulk": 0.5}
"""Largest shares of the pipeline's time."""
INT8 = 2.0
"""Most milliseconds a text of onnx-int8 in bulk."""
CALIBRATED = 400


def sentences(count: int) -> list[str]:
    """First sentences of docstrings, all different."""
    from tools.demo.corpus import PACKAGES, corpus

    texts = (" ".join(text.split()).partition(". ")[0] for _, text, _ in corpus(PACKAGES))
    return list(itertools.islice(dict.fromkeys(t for t in texts if len(t) > 20), count))


def exported(directory: str) -> str:
    """An export of MiniLM with a classifier that is not trained, with its 8-bit formats."""
    from howdah.data.encode import Encoder
    from howdah.models.export.export import export
    from howdah.models.export.run_info import RunInfo
    from howdah.models.weights.parameters import start_weights
    from howdah.models.weights.pretrained import load_base
    from tools import minilm

    path, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    base = load_base(path)
    encoder = Encoder(base.tokenizer_files, path)
    info = RunInfo(
        run_id="bench", max_length=256, clean={}, base={"source": path, "hash": base.hash},
        tokenizer_hash=encoder.hash, framework="torch",
    )  # fmt: skip
    others = sentences(TEXTS + CALIBRATED)[TEXTS:]
    samples = encoder.encode_rows(others, info.max_length, pairs=False)
    return export(
        os.path.join(directory, "export"),
        weights=start_weights(base.config, base.weights, num_labels=4, seed=1),
        base_config=base.config, tokenizer_files=base.tokenizer_files,
        label_names=["a", "b", "c", "d"], run_info=info, formats=list(OURS[:-1]), samples=samples,
        progress=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip


class Classifier:
    """A process that classifies (bench/peers/classifiers.py)."""

    def __init__(self, python: str, kind: str, directory: str, texts: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "bench.peers.classifiers", kind, directory, texts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, what: str) -> object:
        """Its answer."""
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()


def peers_python(folder: str) -> str:
    """The Python of BENCH_PEERS, or of an environment that is made in `folder`."""
    return os.environ.get("BENCH_PEERS") or harness.python_with(folder, PACKAGES)


def main() -> None:
    """All in turn, after one unmeasured round."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.environ.get("BENCH_MODEL") or exported(folder)
        texts = os.path.join(folder, "texts.json")
        with open(texts, "w", encoding="utf-8") as file:
            json.dump(sentences(TEXTS), file)
        pythons = dict.fromkeys((*PEERS, *OURS), sys.executable)
        pythons |= dict.fromkeys(OTHERS, peers_python(os.path.join(folder, "peers")))
        running = {kind: Classifier(pythons[kind], kind, model, texts) for kind in pythons}
        taken = {(kind, way): [] for kind in running for way in BARS}
        for round_ in range(ROUNDS + 1):
            for way, kind in itertools.product(BARS, running):
                milliseconds = running[kind].ask(way)
                if round_:
                    taken[kind, way].append(milliseconds)
        labels = {kind: one.ask("labels") for kind, one in running.items()}
        for one in running.values():
            one.close()
    best = min(PEERS, key=lambda kind: statistics.median(taken[kind, "bulk"]))
    rows = [
        harness.Row(
            what=f"{way}, {kind}", unit="ms CPU a text", peer=peer,
            peer_values=taken[peer, way], our_values=taken[kind, way],
            bar=bar, lower_is_better=True,
            notes={"share": statistics.median(taken[kind, way])
                   / statistics.median(taken[peer, way])},
        )
        for way, kind, peer, bar in (
            *((way, kind, PIPELINE, f"<= {bar} of the peer's")
              for way, bar in BARS.items() for kind in OURS),
            *(("bulk", "onnx-int8", peer, f"<= {INT8} ms, and less than {best}'s")
              for peer in PEERS[1:]),
        )
    ]  # fmt: skip
    same = {
        kind: statistics.mean(a == b for a, b in zip(labels[kind], labels[PIPELINE], strict=True))
        for kind in (*PEERS[1:], *OURS)
    }
    harness.report("score", rows, same_labels=same, texts=TEXTS, rounds=ROUNDS)
    print("labels as the pipeline's:", {kind: f"{share:.4f}" for kind, share in same.items()})


if __name__ == "__main__":
    main()
