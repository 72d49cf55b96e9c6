"""Linear layers and dropout for torch on a CPU, with fewer passes through memory than torch's own;
attention, and copies to a GPU.

Measured in docs/decisions/training-speed.md.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from howdah.core.machine import cpu_has_amx
from howdah.models.weights import parameters

_ROW_MAJOR, _AS_IS, _TRANSPOSED = 101, 111, 112  # CBLAS's numbers


# ------------------------------------------------------------------------------- linear layers
def linear(
    x: torch.Tensor,
    weights: Sequence[torch.nn.Parameter],
    biases: Sequence[torch.nn.Parameter],
    *,
    accumulate: bool = True,
) -> torch.Tensor:
    """Several linear layers of the same input in one product.

    In bf16 on a CPU with AMX the backward pass itself adds the weights' gradients to their `.grad`,
    in float32: `.grad` is set after `backward()`, but `torch.autograd.grad` does not return them.

    Args:
        x: [..., K] in the dtype to compute in.
        weights: [N, K] float32 each.
        biases: [N] float32 each.
        accumulate: the backward pass may add to `.grad` itself; False if other code takes the
            gradients as they are computed (FSDP2).
    Returns:
        [..., sum of N] in x's dtype.
    """
    if accumulate and x.dtype == torch.bfloat16 and not x.is_cuda and mkl_product():
        return _Linear.apply(x, len(weights), *weights, *biases)
    weight, bias = (
        torch.cat([part.to(x.dtype) for part in parts]) if len(parts) > 1 else parts[0].to(x.dtype)
        for parts in (weights, biases)
    )
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """bf16 products whose weights' gradients are computed in float32 and accumulated in place.

    torch rounds them to bf16, then converts and accumulates them, each in a pass through memory.
    Its linear layer also writes the bias to the whole output before it adds the product.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, count: int, *layers: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()  # strided rows (the first tokens) took ten times as long
        weights, biases = layers[:count], layers[count:]
        weight = _joined(weights, x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.weights = weights
        bias = _joined(biases, x.dtype)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, _, *needs = ctx.needs_input_grad
        needs_weight, needs_bias = needs[: len(ctx.weights)], needs[len(ctx.weights) :]
        gradient_MN, x_MK = gradient.flatten(0, -2).contiguous(), x.flatten(0, -2)
        widths = [len(each) for each in ctx.weights]
        parts = zip(ctx.weights, gradient_MN.split(widths, 1), needs_weight, strict=True)
        for parameter, part_MN, needs_gradient in parts:
            if needs_gradient:
                _add_product(part_MN, x_MK, parameter)
        # autograd ignores the gradient of a frozen bias.
        bias_gradients = (
            gradient_MN.sum(0).float().split(widths) if any(needs_bias) else [None] * len(widths)
        )
        x_gradient = torch.mm(gradient_MN, weight).view_as(x) if needs_x else None
        return x_gradient, None, *(None for _ in ctx.weights), *bias_gradients


def _add_product(
    gradient_MN: torch.Tensor, x_MK: torch.Tensor, parameter: torch.nn.Parameter
) -> None:
    """Add gradient^T x, [N, K], to the parameter's gradient."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    (m, n), k = gradient_MN.shape, x_MK.shape[1]
    mkl_product()(
        _ROW_MAJOR, _TRANSPOSED, _AS_IS, n, k, m,
        1.0, gradient_MN.data_ptr(), gradient_MN.stride(0), x_MK.data_ptr(), x_MK.stride(0),
        1.0, parameter.grad.data_ptr(), k,
    )  # fmt: skip


@cache
def mkl_product() -> Callable[..., None] | None:
    """MKL's bf16 product that accumulates in a float32 matrix; None if it is missing or not faster.

    A torch built with MKL exports it from its library, but has no CPU operation for it: `addmm`
    with `out_dtype` exists for CUDA only.

    Source: oneMKL's reference, cblas_gemm_bf16bf16f32.
    """
    if not cpu_has_amx() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        product = ctypes.CDLL(library).cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):  # a build with another BLAS
        return None
    size, matrix = ctypes.c_int, ctypes.c_void_p
    product.restype = None
    product.argtypes = [
        *[size] * 6, ctypes.c_float, matrix, size, matrix, size, ctypes.c_float, matrix, size,
    ]  # fmt: skip
    return product


def _joined(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The parts converted and concatenated in one pass, in half the time of `cat`. It has no
    gradient."""
    joined = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=dtype)
    for part, target in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        target.copy_(part)
    return joined


# ------------------------------------------------------------------------------------- dropout
def dropout_factors(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Dropout's factor for each element: 0, or 1 / (1 - rate). Seeded by torch's generator.

    Args:
        like: CPU tensor with the shape and dtype of the result.
        rate: share of zeros, to a precision of 1 / 65,536.
    """
    count = like.numel()
    # A 64-bit draw serves four elements. numpy's generator, seeded by torch's, is faster. That
    # matters because a single thread draws.
    seed = torch.randint(2**63 - 1, ()).item()
    draws = np.random.Generator(np.random.SFC64(seed)).integers(
        2**64, size=-(-count // 4), dtype=np.uint64
    )
    values = torch.from_numpy(draws.view(np.int16)[:count]).view(like.shape)
    least, factor = parameters.dropout_draw(rate)
    kept = values.ge_(least)  # 0 and 1, in place
    if like.dtype.itemsize == kept.dtype.itemsize:
        # Multiplying the factor's bits as integers avoids a conversion of each element.
        bits = torch.tensor(factor, dtype=like.dtype).view(kept.dtype).item()
        return kept.mul_(bits).view(like.dtype)
    return kept.to(like.dtype).mul_(factor)


def dropped(x: torch.Tensor, rate: float) -> torch.Tensor:
    """x after dropout."""
    if rate == 0.0:
        return x
    return F.dropout(x, rate) if x.is_cuda else x * dropout_factors(x, rate)


# ----------------------------------------------------------------------------------- attention
def attend_fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocked_BT: torch.Tensor | None,
    rate: float,
) -> torch.Tensor:
    """Attention [B, heads, Q, D / heads] by the GPU's fused kernel, dropout included.

    Args:
        query, key, value: [B, heads, Q or T, D / heads].
        blocked_BT: added to the scores; None: no mask. With any mask, even one of zeros, a GPU
            cannot choose flash attention.
        rate: dropout of the attention weights.
    """
    mask = None if blocked_BT is None else blocked_BT[:, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)


def attend_plainly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocked_BT: torch.Tensor | None,
    rate: float,
) -> torch.Tensor:
    """The same as `attend_fused`, step by step, since the CPU's fused kernel has no dropout. N is
    B * heads."""
    by_head = query.shape  # [B, heads, Q, D / heads]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    if blocked_BT is None:
        blocked_N1T = query.new_zeros(1, 1, 1)
    else:
        blocked_N1T = blocked_BT[:, None].repeat_interleave(by_head[1], dim=0)
    scores_NQT = torch.baddbmm(blocked_N1T, query, key.transpose(1, 2), alpha=by_head[-1] ** -0.5)
    return torch.bmm(dropped(scores_NQT.softmax(-1), rate), value).view(by_head)


# ------------------------------------------------------------------------------------- copies
def on_device(array: np.ndarray, device: str | torch.device) -> torch.Tensor:
    """An array as the model takes it: integers int64, but pixels uint8; others as they are.

    A copy from ordinary memory waits for all that the GPU was given before. One from pinned memory
    is only queued, and torch keeps that memory until the copy is done.

    Source: PyTorch, "CUDA semantics", Use pinned memory buffers.
    """
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    return tensor.long() if array.dtype in (np.int32, np.int64) else tensor
