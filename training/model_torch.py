"""DistilBERT for classification in torch, from plain arrays under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from transformers import DistilBertConfig

from howdah.config_model import ModelSection, TrainingSection
from training import parameters
from training.distilbert_torch import DistilBertClassifier

__all__ = ["build", "forward_fn", "import_weights", "weights"]


def build(
    base_config: Mapping,
    weights: Mapping[str, np.ndarray],
    *,
    num_labels: int,
    training: TrainingSection,
    model: ModelSection,
    device: str = "cpu",
) -> DistilBertClassifier:
    """The model, in float32, with the run's dropouts and frozen parts.

    Args:
        base_config: config.json as a dict, defaults filled in.
        weights: by Hugging Face's torch names; without a classifier for `num_labels` it gets a new
            one.
        num_labels: classes.
        training, model: the configuration's sections.
        device: where it goes.
    """
    config = DistilBertConfig(
        **{key: value for key, value in base_config.items() if key not in _NOT_OURS}
        | dict(zip(_DROPOUTS, parameters.dropout_rates(base_config, model), strict=True)),
        num_labels=num_labels,
    )
    config._attn_implementation = "sdpa"
    with torch.device("meta"):  # no random start that the weights would overwrite
        net = DistilBertClassifier(config)
    net.to_empty(device=device)
    positions = torch.arange(config.max_position_embeddings, device=device)
    net.distilbert.embeddings.position_ids = positions.expand((1, -1))  # no weight: in no file
    import_weights(
        net,
        parameters.start_weights(base_config, weights, num_labels=num_labels, seed=training.seed),
    )
    # Rows that a batch touches instead of a dense table of zeros: added to a dense gradient.
    net.distilbert.embeddings.word_embeddings.sparse = True
    trainable = parameters.trainable_names(base_config, model)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in trainable)
    if training.gradient_checkpointing:
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return net


_DROPOUTS = ("dropout", "attention_dropout", "seq_classif_dropout")
# id2label and its like are the base's own task's, not this run's.
_NOT_OURS = {"id2label", "label2id", "num_labels", "problem_type", "architectures", "model_type"}


def weights(net: torch.nn.Module) -> Iterator[tuple[str, np.ndarray]]:
    """All weights, float32 by HF's names; copy what is kept: it may be the model's own memory."""
    for name, parameter in net.named_parameters():
        yield name, parameter.detach().to("cpu", torch.float32).numpy()


@torch.no_grad()
def import_weights(net: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Put weights into the model in place; names and shapes must be the model's."""
    own = dict(net.named_parameters())
    if set(own) != set(arrays):
        raise KeyError(f"weights and model differ in {sorted(set(own) ^ set(arrays))[:5]}")
    for name, parameter in own.items():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def forward_fn(
    net: torch.nn.Module, precision: str = "fp32"
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT) -> logits_BC float32, without dropout and gradient.

    Args:
        net: the model; its mode is put back after each call.
        precision: fp32, bf16 or fp16.
    """
    device = next(net.parameters()).device

    def forward(ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
        training = net.training
        net.eval()
        try:
            with torch.inference_mode(), autocast(device.type, precision):
                logits_BC = net(
                    torch.from_numpy(ids_BT).to(device, torch.int64),
                    torch.from_numpy(mask_BT).to(device),
                )
        finally:
            net.train(training)
        return logits_BC.float().cpu().numpy()

    return forward


def autocast(device_type: str, precision: str) -> torch.autocast:
    """Matrix products in bf16 or fp16, the rest and all weights in float32."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device_type, dtype=dtype, enabled=precision != "fp32")
