"""Hugging Face Trainer on the images of a dataset of ours: the peer of `python -m bench vision`.

    python -m bench.peers.hf_vision --dataset D --base B --out O.json [--seed 1 --epochs 20 ...]

Rows, pixels, base weights, batch size, schedule and epochs are those of our runs; a batch's pixels
are scaled and normalised at once, which is faster than an image processor's call for each image.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import torch

from bench.peers.hf_trainer import Rows, see_one_gpu  # sets USE_TF, before transformers is loaded

# isort: split
from transformers import (
    Trainer,
    TrainingArguments,
    ViTForImageClassification,
    ViTImageProcessor,
    set_seed,
)

from howdah.data.manifest import load_dataset


def main() -> None:
    """Train, evaluate on test, write the figures as JSON."""
    parser = argparse.ArgumentParser()
    for name, kind, default in (
        ("dataset", str, None), ("base", str, None), ("out", str, None), ("seed", int, 1),
        ("epochs", float, 20.0), ("batch", int, 64), ("learning-rate", float, 1e-3),
        ("warmup-ratio", float, 0.1), ("threads", int, 2),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default, required=default is None)
    options = parser.parse_args()
    see_one_gpu()
    torch.set_num_threads(options.threads)
    set_seed(options.seed)
    dataset = load_dataset(options.dataset)
    model = ViTForImageClassification.from_pretrained(
        options.base, num_labels=len(dataset.manifest.labels)
    )
    processor, shape = ViTImageProcessor.from_pretrained(options.base), dataset.manifest.record
    mean, std = (
        torch.tensor(values)[None, :, None, None]
        for values in (processor.image_mean, processor.image_std)
    )

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        images = torch.stack([torch.from_numpy(row["input_ids"]) for row in rows])
        images = images.view(-1, shape.image.height, shape.image.width, shape.image.channels)
        pixels = (images.permute(0, 3, 1, 2).float() / 255 - mean) / std
        return {
            "pixel_values": pixels.contiguous(),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=options.batch,
                per_device_eval_batch_size=256,
                num_train_epochs=options.epochs,
                learning_rate=options.learning_rate,
                warmup_ratio=options.warmup_ratio,
                weight_decay=0.01,
                seed=options.seed,
                use_cpu=not torch.cuda.is_available(),
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                logging_steps=50,
                remove_unused_columns=False,
            ),
            train_dataset=Rows(dataset, "train"),
            data_collator=collate,
        )
        begun = time.perf_counter()
        trained = trainer.train()
        seconds = time.perf_counter() - begun
        test = trainer.predict(Rows(dataset, "test"))
    right = test.predictions.argmax(-1) == test.label_ids
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(
            {
                "seed": options.seed,
                "steps": trained.global_step,
                "train_seconds": seconds,
                "accuracy": float(right.mean()),
            },
            file,
        )


if __name__ == "__main__":
    main()
