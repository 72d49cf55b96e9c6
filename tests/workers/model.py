"""One framework's model, run in a process of its own for tests/models/forward/test_models.py.

    python tests/workers/model.py FRAMEWORK MODEL_DIRECTORY IN.npz OUT.npz

What comes out has the same names for both frameworks.
"""

from __future__ import annotations

import sys
from unittest import mock

import numpy as np

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.models.weights.parameters import trainable_names
from howdah.models.weights.pretrained import load_base
from howdah.process import env

CLASSES = 3
RATES = {"dropout": 0.0}
LEARNING_RATES = (0.01, 0.005, 0.002)
WEIGHT_DECAY, SMOOTHING = 0.1, 0.1


def main(framework: str, directory: str, given_path: str, out_path: str) -> None:
    """Write logits, gradients and updated weights."""
    env.prepare(framework, threads=1)
    base = load_base(directory)
    training = TrainingSection(framework=framework, weight_decay=WEIGHT_DECAY)
    arrays = dict(np.load(given_path))
    work = _tensorflow if framework == "tensorflow" else _torch
    np.savez(out_path, **work(base.config, base.weights, training, arrays))


def _torch(config: dict, weights: dict, training: TrainingSection, arrays: dict) -> dict:
    import torch
    import torch.nn.functional as F
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    from howdah.models.forward import forward_torch, kernels_torch
    from howdah.models.weights.parameters import decays

    def build(model: ModelSection, precision: str = "fp32"):
        return forward_torch.build(
            config, weights, num_labels=CLASSES, training=training, model=model, precision=precision
        )

    net = build(ModelSection(**RATES))
    forward = forward_torch.forward_fn(net)
    out = _logits(forward, arrays)
    for precision in ("bf16", "fp16"):
        half = forward_torch.forward_fn(build(ModelSection(**RATES), precision))
        out[precision] = half(arrays["ids_BT"], arrays["mask_BT"])
    out |= {f"start/{name}": array.copy() for name, array in forward_torch.weights(net)}
    net.train()
    ids_BT, mask_BT = torch.from_numpy(arrays["ids_BT"]).long(), torch.from_numpy(arrays["mask_BT"])
    logits_BC = net(ids_BT, mask_BT)

    def gradients(net: torch.nn.Module, logits_BC: torch.Tensor) -> dict[str, np.ndarray]:
        labels_B = torch.from_numpy(arrays["labels_B"]).long()
        loss_B = F.cross_entropy(logits_BC, labels_B, label_smoothing=SMOOTHING, reduction="none")
        weights_B = torch.from_numpy(arrays["weights_B"])
        net.zero_grad()
        (loss_B * weights_B).sum().div(float(arrays["global_weight"])).backward()
        return {
            name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).numpy().copy()
            for name, p in net.named_parameters()
        }

    out |= {f"gradient/{name}": array for name, array in gradients(net, logits_BC).items()}
    half = build(ModelSection(**RATES), "bf16").train()
    for name, array in gradients(half, half(ids_BT, mask_BT)).items():
        out[f"bf16/gradient/{name}"] = array

    # -- transformers' own forward pass
    plain = DistilBertForSequenceClassification(
        DistilBertConfig(
            **config | {"num_labels": CLASSES, "dropout": 0.0, "attention_dropout": 0.0,
                        "seq_classif_dropout": 0.0}
        )
    ).train()  # fmt: skip
    plain.load_state_dict(net.state_dict())
    logits_BC = plain(input_ids=ids_BT, attention_mask=mask_BT).logits
    out["transformers/logits"] = logits_BC.detach().numpy()
    for name, array in gradients(plain, logits_BC).items():
        out[f"transformers/gradient/{name}"] = array

    # -- a GPU's attention kernel, here on the CPU
    with mock.patch.object(forward_torch, "attend_plainly", forward_torch.attend_fused):
        out["fused"] = forward(arrays["ids_BT"], arrays["mask_BT"])
        for name, array in gradients(net, net(ids_BT, mask_BT)).items():
            out[f"fused/gradient/{name}"] = array

    # -- dropout depends on the seed only, also where activations are recomputed
    dropping = ModelSection(dropout=0.5)
    again = training.model_copy(update={"gradient_checkpointing": True})
    for label, section in (("kept", training), ("again", again)):
        net = forward_torch.build(
            config, weights, num_labels=CLASSES, training=section, model=dropping
        ).train()
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(gradients(net, net(ids_BT, mask_BT))["classifier.weight"])
        out[f"dropout/{label}"] = np.stack(drawn)
    out |= {f"activation/{n}": act(torch.linspace(-4, 4, 99)).numpy()
            for n, act in forward_torch._ACTIVATIONS.items()}  # fmt: skip
    ones = torch.ones(4, 100_001)  # not a multiple of what one draw is for
    torch.manual_seed(3)
    out["dropped"] = np.stack([kernels_torch.dropout_factors(ones, 0.1).numpy() for _ in range(2)])

    named = {name: torch.nn.Parameter(torch.from_numpy(arrays[name])) for name in _updated(arrays)}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if decays(n)], "weight_decay": WEIGHT_DECAY},
            {"params": [p for n, p in named.items() if not decays(n)], "weight_decay": 0.0},
        ]
    )
    for number, lr in enumerate(LEARNING_RATES):
        for name, parameter in named.items():
            parameter.grad = torch.from_numpy(arrays[f"{number}/{name}"] * np.float32(0.5))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for name, parameter in named.items():
        out[f"updated/{name}"] = parameter.detach().numpy()
        out[f"adam_m/{name}"] = optimizer.state[parameter]["exp_avg"].numpy()
        out[f"adam_v/{name}"] = optimizer.state[parameter]["exp_avg_sq"].numpy()
    return out


def _tensorflow(config: dict, weights: dict, training: TrainingSection, arrays: dict) -> dict:
    import tensorflow as tf

    from howdah.models.forward import forward_tf
    from howdah.training.comm.base import SoloComm
    from howdah.training.optim.adamw_tf import AdamW
    from howdah.training.optim.gradients_tf import Gradients
    from howdah.training.optim.steps_tf import Steps

    def build(model: ModelSection, **options):
        return forward_tf.build(
            config, weights, num_labels=CLASSES, training=training, model=model, **options
        )

    net = build(ModelSection(**RATES))
    out = _logits(forward_tf.forward_fn(net), arrays)
    in_bf16 = build(ModelSection(**RATES), precision="bf16")
    out["bf16"] = forward_tf.forward_fn(in_bf16)(arrays["ids_BT"], arrays["mask_BT"])
    exported = {name: array.copy() for name, array in forward_tf.weights(net)}
    out |= {f"start/{name}": array for name, array in exported.items()}

    def steps_of(net, smoothing: float = SMOOTHING) -> tuple[Steps, Gradients]:
        trainable = {name: net.variables[name] for name in net.trainable_names}
        gradients = Gradients(trainable, words=net.family.word_embeddings)
        steps = Steps(net, gradients, label_smoothing=smoothing)
        steps.join(SoloComm())
        return steps, gradients

    steps, gradients = steps_of(net)
    _backward(steps, arrays, micro=0)
    steps.reduce()
    out |= {f"gradient/{name}": np.array(value) for name, value in gradients.sums.items()}
    _backward(steps, arrays, micro=1)  # accumulated
    out["norm"] = np.array(steps.reduce())
    out |= {f"twice/{name}": np.array(value) for name, value in gradients.sums.items()}
    narrow = arrays | {"ids_BT": arrays["ids_BT"][:2, :8], "mask_BT": arrays["mask_BT"][:2, :8]}
    _backward(steps, narrow | {k: arrays[k][:2] for k in ("labels_B", "weights_B")}, micro=0)
    out["traces"] = np.array(steps.traces)

    # -- dropout depends on the seed only
    dropping, _ = steps_of(build(ModelSection(dropout=0.5)))
    losses = [float(_backward(dropping, arrays, micro=0, seed=seed)) for seed in (1, 1, 2)]
    out["dropout/kept"] = np.array(losses)
    out |= {f"activation/{n}": act(tf.linspace(-4.0, 4.0, 99)).numpy()
            for n, act in forward_tf._ACTIVATIONS.items()}  # fmt: skip
    ones = tf.ones([4, 100_001])  # not a multiple of what one draw is for
    dropped = forward_tf.Dropouts(tf.constant([3, 0], tf.int64))
    out["dropped"] = np.stack([dropped(ones, 0.1).numpy(), dropped(ones, 0.1).numpy()])

    # -- a frozen part has no gradient
    frozen = ModelSection(freeze_embeddings=True, freeze_layers=1, **RATES)
    part, kept = steps_of(build(frozen))
    _backward(part, arrays, micro=0)
    part.reduce()
    if list(kept.sums) != trainable_names(config, frozen):
        raise RuntimeError(f"other gradients than of trainable tensors: {list(kept.sums)}")
    out |= {f"frozen/{name}": np.array(value) for name, value in kept.sums.items()}

    # -- weights are imported again
    forward_tf.import_weights(net, ((name, array + 1) for name, array in exported.items()))
    out |= {f"imported/{name}": array.copy() for name, array in forward_tf.weights(net)}

    # -- the optimizer, saved after two updates and restored
    variables = {name: tf.Variable(arrays[name]) for name in _updated(arrays)}
    optimizer = AdamW(variables, training)
    for number, lr in enumerate(LEARNING_RATES):
        if number == 2:
            moments = {name: array.copy() for name, array in optimizer.moments()}
            optimizer = AdamW(variables, training)
            optimizer.restore(iter(moments.items()), updates=2)
        sums = [tf.Variable(arrays[f"{number}/{name}"]) for name in variables]
        optimizer.step(sums, lr=lr, factor=0.5)
    out |= {f"updated/{name}": np.array(variable) for name, variable in variables.items()}
    return out | dict(optimizer.moments())


def _logits(forward, arrays: dict) -> dict:
    """Logits with the padding of the batch and with more, which must not change them."""
    ids_BT, mask_BT = arrays["ids_BT"], arrays["mask_BT"]
    wider = [np.pad(array, ((0, 0), (0, 16))) for array in (ids_BT, mask_BT)]
    return {"logits": forward(ids_BT, mask_BT), "wider": forward(*wider)}


def _backward(steps, arrays: dict, *, micro: int, seed: int = 7):
    from types import SimpleNamespace

    names = ("ids_BT", "mask_BT", "labels_B", "weights_B", "global_weight")
    batch = SimpleNamespace(micro=micro, **{name: arrays[name] for name in names})
    return steps.backward(batch, seed=seed, scale=1.0)


def _updated(arrays: dict) -> list[str]:
    return [name for name in arrays if name.endswith((".weight", ".bias")) and name[0] not in "012"]


if __name__ == "__main__":
    main(*sys.argv[1:])
