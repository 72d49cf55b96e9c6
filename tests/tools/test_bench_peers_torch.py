"""The peers of the benches do the work that they are compared in."""

from __future__ import annotations

import os

import pytest

from bench.peers import hf_trainer, plain_torch


def test_the_plain_loop_trains_a_model_that_computes_dropout(tiny_dataset, tiny_model_dir):
    """`from_pretrained` returns a model for inference."""
    nets, seen = [], []

    def wrap(net, optimizer):
        nets.append(net)
        return net, optimizer

    job = plain_torch.Job(
        dataset=tiny_dataset.path, base=tiny_model_dir, steps=2, batch=8, threads=1
    )
    plain_torch.train(
        job, 0, 1, wrap=wrap,
        after=lambda step: seen.append({one.training for one in nets[0].modules()}),
    )  # fmt: skip
    assert seen == [{True}, {True}]


@pytest.mark.parametrize(
    ("visible", "seen"), [(None, "0"), ("2,3", "2"), ("GPU-a,GPU-b", "GPU-a"), ("", ""), ("-1", "")]
)
def test_the_trainer_sees_one_gpu_and_takes_one_batch_a_step(monkeypatch, visible, seen):
    """With two GPUs it would make nn.DataParallel, with the batch on each."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    hf_trainer.see_one_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_ranks_of_torchrun_see_what_they_saw(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    hf_trainer.see_one_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
