"""Hugging Face Trainer on the rows of a dataset of ours: the peer of the training benches.

    python -m bench.peers.hf_trainer --dataset D --base B --out O.json [--seed 1 --epochs 2 ...]
    python -m bench.peers.hf_trainer --dataset D --base B --start-only S [--seed 1]
    torchrun --nproc-per-node 2 -m bench.peers.hf_trainer ...

The rows, their ids, the base weights, batch size, schedule and epochs are those of our runs; the
rest is as the Trainer comes, or its best settings here (--bf16 --group-by-length). `--start-only`
writes what a run of this seed starts from, its new classifier included, as a base model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time

os.environ["USE_TF"] = "0"  # where TensorFlow is installed too, transformers would load it

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from bench.peers.progress import Progress
from howdah.core import gpus
from howdah.data.manifest import load_dataset
from howdah.data.splits.shards import ShardSet
from howdah.training.run.local_dir import process_age


def see_one_gpu() -> None:
    """Hide all GPUs but the first one, which is CUDA's and ours; call before CUDA starts.

    The Trainer would spread its model over all of them (nn.DataParallel), with a batch for each.
    Ranks of torchrun take one each by themselves.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        visible = gpus.chosen(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
        os.environ["CUDA_VISIBLE_DEVICES"] = "".join(visible[:1])


class Rows(Dataset):
    """Rows of a split as the Trainer takes them."""

    def __init__(self, dataset, split: str) -> None:
        shards = ShardSet(dataset, split)
        self.rows = []
        for shard, entry in enumerate(shards.entries):
            for row in range(entry.rows):
                example = shards.example(shard, row)
                self.rows.append({"input_ids": example.input_ids, "labels": example.label})
        if dataset.manifest.task == "multi_label":
            at = [(shard, row) for shard, e in enumerate(shards.entries) for row in range(e.rows)]
            labels_NC = shards.labels_of(*np.array(at, np.int64).T)
            for one, labels_C in zip(self.rows, labels_NC, strict=True):
                one["labels"] = labels_C

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict:
        return self.rows[at]


def collate(rows: list[dict], width: int | None) -> dict[str, torch.Tensor]:
    """Pad to the longest row, or to `width`."""
    longest = width or max(len(row["input_ids"]) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for n, row in enumerate(rows):
        ids[n, : len(row["input_ids"])] = row["input_ids"]
        mask[n, : len(row["input_ids"])] = 1
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(np.array([row["labels"] for row in rows])),
    }


class StepTimes(TrainerCallback):
    """Seconds of each optimizer step, and of the way to the first one's end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: list[float] = []
        self.to_first: float | None = None
        """From this process's start; the warm-up is left out."""
        self.warmed_up = 0.0
        self.between: list[float] = []
        """From one step's end to the next one's: with what happens in between, such as a save."""
        self._ended = time.perf_counter()

    def on_step_begin(self, *args, **kwargs) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self._progress.step(state.global_step)
        now = time.perf_counter()
        if self.to_first is None:
            self.to_first = process_age() - self.warmed_up
        self.seconds.append(now - self._begun)
        self.between.append(now - self._ended)
        self._ended = now


def warm_up(model: torch.nn.Module, batch: int, width: int, steps: int = 4) -> None:
    """Backward passes that leave no trace but warm code and memory."""
    state = torch.get_rng_state()
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    for _ in range(steps):
        ids = torch.ones(batch, width, dtype=torch.int64, device=model.device)
        model(input_ids=ids, attention_mask=ids, labels=ids[:, 0]).loss.backward()
    model.zero_grad()
    torch.set_rng_state(state)


def main() -> None:
    """Train, evaluate on test, write the figures as JSON."""
    parser = argparse.ArgumentParser()
    for name, kind, default in (
        ("dataset", str, None), ("base", str, None), ("out", str, ""), ("seed", int, 1),
        ("epochs", float, 2.0), ("max-steps", int, -1), ("batch", int, 32),
        ("learning-rate", float, 5e-5), ("warmup-ratio", float, 0.1), ("pad-to", int, 0),
        ("threads", int, 2), ("save-steps", int, 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default, required=default is None)
    parser.add_argument("--start-only", metavar="FOLDER")
    parser.add_argument("--progress", help="folder for the steps' times")
    parser.add_argument("--keep", help="folder for checkpoints; a later start goes on from them")
    parser.add_argument("--warm-up", action="store_true", help="some steps before the first one")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--attention", help="transformers' attn_implementation, such as sdpa")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--group-by-length", action="store_true")
    options = parser.parse_args()
    if not (options.out or options.start_only):
        parser.error("--out is needed, or --start-only")

    see_one_gpu()
    torch.set_num_threads(options.threads)
    set_seed(options.seed)
    dataset = load_dataset(options.dataset)
    several = dataset.manifest.task == "multi_label"
    model = DistilBertForSequenceClassification.from_pretrained(
        options.base,
        num_labels=len(dataset.manifest.labels),
        problem_type="multi_label_classification" if several else None,
        **({"attn_implementation": options.attention} if options.attention else {}),
    )
    if options.start_only:
        shutil.copytree(options.base, options.start_only)  # the tokenizer
        # Ours takes a base's classifier only where it is for the dataset's labels.
        model.config.id2label = dict(enumerate(dataset.manifest.labels))
        model.config.label2id = {label: n for n, label in model.config.id2label.items()}
        model.save_pretrained(options.start_only)
        return
    rank, world = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    times, tokens = StepTimes(Progress(options.progress, rank)), []
    if options.warm_up:
        begun = time.perf_counter()
        warm_up(model, options.batch, options.pad_to or 64)
        times.warmed_up = time.perf_counter() - begun

    def collated(rows: list[dict]) -> dict[str, torch.Tensor]:
        tokens.append(sum(len(row["input_ids"]) for row in rows))
        return collate(rows, options.pad_to or None)

    train_rows = Rows(dataset, "train")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=options.keep or folder,
                per_device_train_batch_size=options.batch // world,
                per_device_eval_batch_size=64,
                num_train_epochs=options.epochs,
                max_steps=options.max_steps,
                learning_rate=options.learning_rate,
                warmup_ratio=options.warmup_ratio,
                weight_decay=0.01,
                seed=options.seed,
                bf16=options.bf16,
                torch_compile=options.compile,
                group_by_length=options.group_by_length,
                use_cpu=not torch.cuda.is_available(),
                ddp_backend="gloo" if world > 1 and not torch.cuda.is_available() else None,
                save_strategy="steps" if options.save_steps else "no",
                save_steps=options.save_steps or 500,
                save_total_limit=2,
                report_to=[],
                disable_tqdm=True,
                logging_steps=10,
            ),
            train_dataset=train_rows,
            data_collator=collated,
            callbacks=[times],
        )
        begun = time.perf_counter()
        before = options.keep and os.path.isdir(options.keep) and get_last_checkpoint(options.keep)
        trained = trainer.train(resume_from_checkpoint=before or None)
        seconds = time.perf_counter() - begun
        result = {
            "seed": options.seed,
            "steps": trained.global_step,
            "train_seconds": seconds,
            "step_seconds": times.seconds,
            "step_tokens": tokens[: trained.global_step],
            "seconds_to_first_step": times.to_first,
            "between_steps": times.between,
            "train_loss": trained.training_loss,
            "examples_per_second": trained.global_step * options.batch / seconds,
        }
        if "test" in dataset.manifest.splits:
            test = trainer.predict(Rows(dataset, "test"))
            result["loss"] = float(test.metrics["test_loss"])
            if several:
                pred, true = test.predictions > 0, test.label_ids > 0.5
                result["micro_f1"] = float(2 * (pred & true).sum() / (pred.sum() + true.sum()))
            else:
                right = test.predictions.argmax(-1) == test.label_ids
                result["accuracy"] = float(right.mean())
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
