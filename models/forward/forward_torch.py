"""Classifiers in torch, from plain arrays under Hugging Face's names.

Used instead of transformers' class for speed. Importing that class takes each rank some seconds,
twice as long as torch itself. On a CPU a quarter of its step goes into drawing dropout's random
numbers on one thread and into a softmax that checks for rows without any token, which do not occur
here (docs/decisions/training-speed.md).

A family (data/family.py) names its tensors and its forward pass, one of FORWARD_PASSES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.family import family_of
from howdah.models.forward.kernels_torch import (
    attend_fused,
    attend_plainly,
    dropped,
    linear,
    on_device,
)
from howdah.models.forward.packing_torch import Packing
from howdah.models.forward.sharded_torch import part_of
from howdah.models.weights import lora, parameters
from howdah.models.weights.parameters import BLOCKED

_ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _Node(torch.nn.Module):
    """A module of the tree that the parameters' dotted names describe. It holds parameters and runs
    the function that it is called with."""

    def forward(self, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        return compute(*inputs)


Blocked = torch.Tensor | None
"""[B, T], added to the attention's scores: 0 for tokens. None: no token is masked."""


class EncoderClassifier(torch.nn.Module):
    """The forward pass "post-norm": a norm behind each sublayer; the head takes the first token.

    Parameters are float32 under Hugging Face's names; it computes in `compute_dtype`.
    Source: transformers' `modeling_distilbert.py`, `modeling_bert.py`, `modeling_roberta.py`.

    Args:
        config: the base's config.json, defaults filled in.
        weights: float32 by name, all of them; copied.
        trainable: names that training changes.
        rates: dropout of the transformer, the attention weights, and before the classifier.
        compute_dtype: dtype of matrix products and activations; norms and softmax compute in
            float32 internally.
        recompute: compute activations inside layers again in the backward pass, to save memory.
        device: torch's name of the device.
        first_type_ends: rows are pairs of texts, and this token ends the first text: later tokens
            have token type 1. None: all have type 0.
    """

    def __init__(
        self,
        config: Mapping,
        weights: Mapping[str, np.ndarray],
        *,
        trainable: list[str],
        rates: tuple[float, float, float],
        compute_dtype: torch.dtype = torch.float32,
        recompute: bool = False,
        device: str = "cpu",
        first_type_ends: int | None = None,
    ) -> None:
        super().__init__()
        self.first_type_ends = first_type_ends
        self.config = dict(config)
        self.family = family_of(config)
        self.compute_dtype = compute_dtype
        self.rates = rates
        self._recompute = recompute
        self.divided = False
        """FSDP2 divides the parameters among the ranks (models/forward/sharded_torch.py): every
        rank enters the forward and the backward pass."""
        self._places: dict[str, tuple[torch.nn.Module, str]] = {}
        for name, array in weights.items():
            tensor = torch.from_numpy(np.array(array, np.float32)).to(device)
            parameter = torch.nn.Parameter(tensor, requires_grad=name in trainable)
            module, leaf = _parent_module(self, name), name.rpartition(".")[2]
            module.register_parameter(leaf, parameter)
            self._places[name] = module, leaf

    def _parameter(self, name: str) -> torch.Tensor:
        """The current parameter: while FSDP2 computes a module, the gathered one replaces this
        rank's part."""
        module, leaf = self._places[name]
        return getattr(module, leaf)

    def _within(
        self, name: str, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor
    ) -> torch.Tensor:
        """Compute in the module of this name, so that hooks on it (FSDP2's) see the call."""
        return self.get_submodule(name.rstrip("."))(compute, *inputs)

    def parts(self) -> list[str]:
        """The modules that compute one after the other, before the classifier."""
        layers = range(self.config[self.family.keys.layers])
        embeddings = self.family.prefix + self.family.embeddings
        return [embeddings, *(self.family.layer_name(number) for number in layers)]

    def forward(
        self,
        ids_BT: torch.Tensor,
        mask_BT: torch.Tensor | None,
        types_BT: torch.Tensor | None = None,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        """Logits [B, C] float32.

        Args:
            ids_BT: int64.
            mask_BT: integers, 1 for tokens, 0 for padding; each row has at least one token. None:
                there is no padding, and a GPU can choose flash attention.
            types_BT: int64, the token types; None: they follow from `first_type_ends`. Not read if
                the model has fewer than two.
            packing: where the tokens of `mask_BT` are; given, padding takes part in the embeddings
                and the attention alone.
        """
        dropout, _, classifier_dropout = self.rates
        blocked_BT = None
        if mask_BT is not None:
            blocked_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
            # Filled in float32: the conversion to fp16, whose range is smaller, gives -inf.
            blocked_BT = blocked_BT.masked_fill_(mask_BT == 0, BLOCKED).to(self.compute_dtype)
        embeddings = self.family.prefix + self.family.embeddings
        embedded_BTD = self._within(embeddings, self._embed, ids_BT, types_BT)
        if packing is not None:
            embedded_BTD = packing.packed(embedded_BTD)
        hidden_BTD = self._dropped(embedded_BTD, dropout)
        hidden_BTD = self._layers(hidden_BTD, blocked_BT, packing)
        inner, outer = self.family.classifier_layers
        first_BD = hidden_BTD[:, 0]
        if self.family.head_dropout_first:
            first_BD = self._dropped(first_BD, classifier_dropout)
        first_BD = _ACTIVATIONS[self.family.head_activation](self._linear(first_BD, inner))
        logits_BC = self._linear(self._dropped(first_BD, classifier_dropout), outer)
        return logits_BC.float()

    def _embed(self, ids_BT: torch.Tensor, types_BT: torch.Tensor | None) -> torch.Tensor:
        family = self.family
        # A sparse gradient holds only the rows that a batch touches, not a dense table of zeros.
        # FSDP2 reduces the gradients of divided parameters itself and needs them dense.
        words = self._parameter(family.word_embeddings)
        words_BTD = F.embedding(ids_BT, words, sparse=not self.divided)
        first = family.first_position(self.config)
        positions_TD = self._parameter(family.position_embeddings)[first : first + ids_BT.shape[1]]
        embedded_BTD = words_BTD + positions_TD
        if family.token_type_table:
            types = self._parameter(family.token_type_embeddings)
            if types_BT is None and self.first_type_ends is not None:
                ends_BT = (ids_BT == self.first_type_ends).long()
                types_BT = (ends_BT.cumsum(1) > ends_BT).long()  # 1 after the first end token
            one_type = types_BT is None or len(types) == 1
            embedded_BTD = embedded_BTD + (types[0] if one_type else F.embedding(types_BT, types))
        return self._norm(embedded_BTD, family.prefix + family.embeddings + family.embeddings_norm)

    def _layers(
        self, hidden_BTD: torch.Tensor, blocked_BT: Blocked, packing: Packing | None
    ) -> torch.Tensor:
        """[B, 1, D]: the first token after the last layer."""
        layers = self.config[self.family.keys.layers]
        for number in range(layers):
            name = self.family.layer_name(number)
            layer = partial(self._layer, name, first_only=number == layers - 1, packing=packing)
            if self._recompute and self.training:
                layer = partial(checkpoint, layer, use_reentrant=False)
            hidden_BTD = self._within(name, layer, hidden_BTD, blocked_BT)
        return hidden_BTD

    def _layer(
        self,
        layer: str,
        hidden_BTD: torch.Tensor,
        blocked_BT: Blocked,
        *,
        first_only: bool,
        packing: Packing | None,
    ) -> torch.Tensor:
        """[B, Q, D] for all tokens; in the last layer only for the first: the head reads no
        other. With a packing, tokens are [N, D], but [B, 1, D] where they are the first ones."""
        part = self.family.layer
        query_BQD = hidden_BTD
        if first_only:
            query_BQD = hidden_BTD[:, :1] if packing is None else packing.first(hidden_BTD)
        attended_BQD = self._attend(query_BQD, hidden_BTD, blocked_BT, layer, packing)
        if self.family.attended_dropout:
            attended_BQD = self._dropped(attended_BQD, self.rates[0])
        residual_BQD = self._norm(attended_BQD + query_BQD, layer + part.attention_norm)
        inner_BQH = self._linear(residual_BQD, layer + part.inner)
        inner_BQH = _ACTIVATIONS[self.config[self.family.activation]](inner_BQH)
        outer_BQD = self._dropped(self._linear(inner_BQH, layer + part.outer), self.rates[0])
        return self._norm(outer_BQD + residual_BQD, layer + part.output_norm)

    def _attend(
        self,
        query_BQD: torch.Tensor,
        hidden_BTD: torch.Tensor,
        blocked_BT: Blocked,
        layer: str,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        part, names = self.family.layer, (self.family.layer.key, self.family.layer.value)
        whole = query_BQD is hidden_BTD
        if whole:  # one product instead of three
            query, key, value = self._by_head(hidden_BTD, layer, packing, part.query, *names)
        else:
            (query,) = self._by_head(query_BQD, layer, None, part.query)
            key, value = self._by_head(hidden_BTD, layer, packing, *names)
        attend = attend_fused if hidden_BTD.is_cuda else attend_plainly
        context = attend(query, key, value, blocked_BT, self.rates[1] if self.training else 0.0)
        context_BQD = context.transpose(1, 2).flatten(-2)
        if packing is not None and whole:
            context_BQD = packing.packed(context_BQD)
        return self._linear(context_BQD, layer + part.attended)

    def _by_head(
        self, x: torch.Tensor, layer: str, packing: Packing | None, *names: str
    ) -> tuple[torch.Tensor, ...]:
        """A projection of x for each name: [B, heads, T, D / heads]."""
        projected = self._linear(x, *(layer + name for name in names))
        if packing is not None:
            projected = packing.padded(projected)
        heads = self.config[self.family.keys.heads]
        shape = (len(names), heads, -1)
        # [B, T, names, heads, D / heads] -> [names, B, heads, T, D / heads]
        return projected.unflatten(-1, shape).permute(2, 0, 3, 1, 4).unbind()

    def _linear(self, x: torch.Tensor, *names: str) -> torch.Tensor:
        """The outputs of the linear layers of these names for x, concatenated."""
        weights, biases = (
            [self._parameter(f"{name}.{part}") for name in names] for part in ("weight", "bias")
        )
        outputs = linear(x, weights, biases, accumulate=not self.divided)
        adapted = [name for name in names if name + lora.A in self._places]
        if not adapted:
            return outputs
        # All adapters in two products: a layer without one has rows of zeros in the second.
        a_RI = torch.cat([self._parameter(name + lora.A) for name in adapted]).to(x.dtype)
        b_OR = torch.block_diag(
            *(
                self._parameter(name + lora.B) if name in adapted else weight[:, :0]
                for name, weight in zip(names, weights, strict=True)
            )
        ).to(x.dtype)
        factor = lora.scale(len(a_RI) // len(adapted))
        flat, low = outputs.flatten(0, -2), F.linear(x, a_RI).flatten(0, -2)
        return torch.addmm(flat, low, b_OR.t(), alpha=factor).view_as(outputs)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight_D, bias_D = self._parameter(name + ".weight"), self._parameter(name + ".bias")
        if x.is_cuda:  # CUDA's kernel does not accept float32 weights for bf16 input
            x = x.float()
        epsilon = self.family.epsilon(self.config)
        return F.layer_norm(x, weight_D.shape, weight_D, bias_D, epsilon).to(self.compute_dtype)

    def _dropped(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        return dropped(x, rate) if self.training else x


class VisionClassifier(EncoderClassifier):
    """The forward pass "vision": patches of pixels, a norm before each sublayer and after the last
    layer; the head takes the class token.

    Source: transformers' `modeling_vit.py`. Config has the image processor's image_mean and
    image_std too (models/weights/pretrained.py).
    """

    _colours: tuple[torch.Tensor, torch.Tensor] | None = None
    """image_mean and image_std on the device, created once."""

    def forward(
        self, pixels_BN: torch.Tensor, mask_BT: torch.Tensor | None, packing: object = None
    ) -> torch.Tensor:
        """Logits [B, C] float32.

        Args:
            pixels_BN: uint8, an image in each row: N = height * width * channels.
            mask_BT, packing: not read, since images have no padding.
        """
        dropout, _, classifier_dropout = self.rates
        embeddings = self.family.prefix + self.family.embeddings
        hidden_BTD = self._dropped(self._within(embeddings, self._embed, pixels_BN), dropout)
        hidden_BTD = self._layers(hidden_BTD, None, None)
        first_BD = self._norm(hidden_BTD[:, 0], self.family.prefix + self.family.final_norm)
        (head,) = self.family.head
        return self._linear(self._dropped(first_BD, classifier_dropout), head).float()

    def _embed(self, pixels_BN: torch.Tensor) -> torch.Tensor:
        family, config = self.family, self.config
        side, patch = config[family.image_size], config[family.patch_size]
        across, channels = side // patch, config[family.channels]
        if self._colours is None:
            self._colours = tuple(
                torch.tensor(config[key], device=pixels_BN.device)
                for key in ("image_mean", "image_std")
            )
        mean_C, std_C = self._colours
        pixels = (pixels_BN.view(-1, side, side, channels).float() / 255 - mean_C) / std_C
        # A convolution whose stride is its width is one product of patches [channels, y, x].
        patches = pixels.view(-1, across, patch, across, patch, channels).permute(0, 1, 3, 5, 2, 4)
        name = family.prefix + family.embeddings
        weight = self._parameter(f"{name}{family.projection}.weight").flatten(1)
        patches_BTD = F.linear(
            patches.reshape(-1, across * across, weight.shape[1]).to(self.compute_dtype),
            weight.to(self.compute_dtype),
            self._parameter(f"{name}{family.projection}.bias").to(self.compute_dtype),
        )
        first_11D = self._parameter(name + family.class_token).to(self.compute_dtype)
        tokens_BTD = torch.cat([first_11D.expand(len(patches_BTD), -1, -1), patches_BTD], dim=1)
        return tokens_BTD + self._parameter(family.position_embeddings).to(self.compute_dtype)

    def _layer(
        self,
        layer: str,
        hidden_BTD: torch.Tensor,
        blocked_BT: Blocked,
        *,
        first_only: bool,
        packing: None,
    ) -> torch.Tensor:
        """[B, Q, D] for all tokens; in the last layer only for the first: the head reads no
        other."""
        part, dropout = self.family.layer, self.rates[0]
        normed_BTD = self._norm(hidden_BTD, layer + part.attention_norm)
        query_BQD = normed_BTD[:, :1] if first_only else normed_BTD
        attended_BQD = self._attend(query_BQD, normed_BTD, blocked_BT, layer)
        hidden_BQD = hidden_BTD[:, :1] if first_only else hidden_BTD
        hidden_BQD = self._dropped(attended_BQD, dropout) + hidden_BQD
        inner_BQH = self._linear(
            self._norm(hidden_BQD, layer + part.output_norm), layer + part.inner
        )
        inner_BQH = _ACTIVATIONS[self.config[self.family.activation]](inner_BQH)
        return self._dropped(self._linear(inner_BQH, layer + part.outer), dropout) + hidden_BQD


FORWARD_PASSES: dict[str, type[EncoderClassifier]] = {
    "post-norm": EncoderClassifier,
    "vision": VisionClassifier,
}
"""Classes by the name in `ModelFamily.forward` (data/family.py)."""


def _parent_module(net: torch.nn.Module, name: str) -> torch.nn.Module:
    """The module that holds the parameter of this dotted name; created if it is missing."""
    module = net
    for part in name.split(".")[:-1]:
        if part not in module._modules:
            module.add_module(part, _Node())
        module = module._modules[part]
    return module


def build(
    base_config: Mapping,
    weights: Mapping[str, np.ndarray],
    *,
    num_labels: int,
    training: TrainingSection,
    model: ModelSection,
    precision: str = "fp32",
    device: str = "cpu",
    first_type_ends: int | None = None,
) -> EncoderClassifier:
    """The model with the run's dropouts and frozen parts; its parameters are float32.

    Args:
        base_config: config.json as a dict, defaults filled in.
        weights: arrays by Hugging Face's torch names; a new classifier is added if they lack one
            for `num_labels`.
        precision: fp32, bf16 or fp16, to compute in.
        device: torch's name of the device.
        first_type_ends: for pairs (Encoder.first_type_ends); None: all tokens have type 0.
    Raises:
        ModelError: the family is unknown, or does not have the activation.
        ConfigError: model.freeze_layers exceeds the model's layers.
    """
    family = family_of(base_config)
    family.check_activation(base_config)
    start = parameters.start_weights(
        base_config,
        weights,
        num_labels=num_labels,
        seed=training.seed,
        adapters=lora.adapter_shapes(base_config, model, training.lora),
    )
    return FORWARD_PASSES[family.forward](
        base_config,
        start,
        trainable=parameters.trainable_names(base_config, model, training.lora),
        rates=parameters.dropout_rates(base_config, model),
        compute_dtype=_DTYPES[precision],
        recompute=training.gradient_checkpointing,
        device=device,
        first_type_ends=first_type_ends,
    )


def weights(net: torch.nn.Module) -> Iterator[tuple[str, np.ndarray]]:
    """All weights, float32 by Hugging Face's torch names.

    Copy an array to keep it: it may be the model's own memory.
    """
    for name, parameter in net.named_parameters():
        yield name, parameter.detach().to("cpu", torch.float32).numpy()


@torch.no_grad()
def import_weights(net: EncoderClassifier, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Copy weights, or this rank's part of them, into the model in place; names and shapes must be
    the model's. None of those that are trained may be missing, and the others keep their values."""
    named = dict(net.named_parameters())
    remaining = {name for name, parameter in named.items() if parameter.requires_grad}
    for name, array in arrays:
        target, rows = part_of(named[name])
        target.copy_(torch.from_numpy(np.ascontiguousarray(array[rows])))
        remaining.discard(name)
    if remaining:
        raise KeyError(f"the weights lack {sorted(remaining)[:5]}")


def out_of_memory(error: BaseException) -> bool:
    """True if an error of torch means that the device, or the host, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    signs = (
        "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
        "DefaultCPUAllocator: can't allocate memory",
    )  # fmt: skip
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def forward_fn(
    net: EncoderClassifier, *, as_served: bool = False
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT, types_BT or None) -> logits_BC float32, without dropout and gradient.

    Args:
        net: the model; its mode is restored after each call.
        as_served: compute in float32, as models/opened/opened.py does, whatever the training
            precision.
    """
    device = next(net.parameters()).device

    def forward(
        ids_BT: np.ndarray, mask_BT: np.ndarray, types_BT: np.ndarray | None = None
    ) -> np.ndarray:
        training, dtype = net.training, net.compute_dtype
        net.eval()
        if as_served:
            net.compute_dtype = torch.float32
        try:
            # Parameters that FSDP2 gathers in inference mode cannot be used in training afterwards.
            with torch.no_grad() if net.divided else torch.inference_mode():
                types = {} if types_BT is None else {"types_BT": on_device(types_BT, device)}
                mask = None if mask_BT.all() else on_device(mask_BT, device)
                logits_BC = net(on_device(ids_BT, device), mask, **types)
        finally:
            if net.divided:
                net.reshard()  # FSDP2 keeps the root module gathered for a backward pass
            net.train(training)
            net.compute_dtype = dtype
        return logits_BC.cpu().numpy()

    return forward
