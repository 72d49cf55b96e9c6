"""The peers of the benches do the work that they are compared in."""

from __future__ import annotations

from bench.peers import plain_torch


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
