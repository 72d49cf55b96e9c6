"""The model's messages of a gradient are those that the torch loop sends."""

from __future__ import annotations

import json
import os

import pytest

from howdah.config import loader as configuration
from howdah.process import env
from howdah.training.comm.base import SoloComm, network_message
from howdah.training.planning import calibrate
from tests.support.models.tiny_model import tiny_weights


class TwoNodes(SoloComm):
    size = 2


@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_predicted_messages_are_those_of_the_torch_loop(
    tiny_dataset, tiny_model_dir, monkeypatch, groups, frozen
):
    env.prepare("torch")
    from howdah.models.forward import forward_torch
    from howdah.training.optim.gradients_torch import FlatGradients

    config = configuration.from_dict(
        {
            "data": {"dataset": tiny_dataset.path},
            "model": {"base": tiny_model_dir, "freeze_embeddings": frozen},
            "training": {"framework": "torch"},
        }
    )
    with open(os.path.join(tiny_model_dir, "config.json"), encoding="utf-8") as file:
        base = json.load(file)
    net = forward_torch.build(
        base, tiny_weights(base), num_labels=4, training=config.training, model=config.model
    )
    trainable = {n: p for n, p in net.named_parameters() if p.requires_grad}
    gradients = FlatGradients(trainable, words=net.family.word_embeddings)
    monkeypatch.setattr(calibrate.schedule, "FUSION_GROUPS", groups)
    sizes = calibrate.Sizes(config).gradient(network_message(2))
    for sparse, messages in ((False, sizes.dense), (True, sizes.without_words)):
        gradients.arrange(groups, sparse_embeddings=sparse and not frozen)
        slices = gradients._slices(TwoNodes())
        assert [4 * (end - start) for start, end in slices] == list(messages)
    assert sizes.vocabulary == (0 if frozen else base["vocab_size"])
