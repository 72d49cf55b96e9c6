"""Linear layers in torch with a custom backward pass, compared with products in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from howdah.core.machine import cpu_emulates_bf16
from howdah.models.forward import kernels_torch
from howdah.models.forward.kernels_torch import attend_fused, attend_plainly, linear

WIDTHS = (24, 8, 40)
"""Widths of layers computed together; unequal, so that a mix-up shows."""


def test_bf16_is_emulated_where_torch_says_so():
    assert cpu_emulates_bf16() != torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.fixture(params=["own", "torch's"])
def products(request, monkeypatch) -> Iterator[None]:
    """Both computations of gradients; without AMX the first is slower, but correct."""
    has_amx = request.param == "own"
    monkeypatch.setattr(kernels_torch, "cpu_has_amx", lambda: has_amx)
    kernels_torch.mkl_product.cache_clear()
    if has_amx and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("the processor has no AVX-512: oneDNN has no products of bf16 there")
    assert (kernels_torch.mkl_product() is not None) == has_amx
    yield
    kernels_torch.mkl_product.cache_clear()


def layers(*, frozen: tuple[int, ...] = ()) -> tuple[list, list]:
    """Weights and biases whose values bf16 holds exactly."""
    generator = torch.Generator().manual_seed(2)

    def parameter(number: int, *shape: int) -> torch.nn.Parameter:
        values = torch.randn(shape, generator=generator).bfloat16().float()
        return torch.nn.Parameter(values, requires_grad=number not in frozen)

    return (
        [parameter(number, width, 16) for number, width in enumerate(WIDTHS)],
        [parameter(number, width) for number, width in enumerate(WIDTHS)],
    )


def inputs(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def check(output: torch.Tensor, expected: np.ndarray, *, rounded: bool) -> None:
    """To bf16's precision where it was rounded to bf16 at the end, else to float32's."""
    off = np.abs(output.detach().double().numpy() - expected).max() / np.abs(expected).max()
    assert off < (0.006 if rounded else 1e-6)


@pytest.mark.parametrize("first_only", [False, True])
def test_products_and_gradients(products, first_only):
    whole = inputs(5, 7, 16, seed=3).requires_grad_()
    x = whole[:, :1] if first_only else whole
    upstream = inputs(5, x.shape[1], sum(WIDTHS), seed=4)
    weights, biases = layers()
    out = linear(x, weights, biases)
    out.backward(upstream)

    x_MK = x.detach().double().reshape(-1, 16).numpy()
    upstream_MN = upstream.double().reshape(-1, sum(WIDTHS)).numpy()
    weight_NK = torch.cat(weights).detach().double().numpy()
    bias_N = torch.cat(biases).detach().double().numpy()
    assert out.dtype == torch.bfloat16 and out.shape == upstream.shape
    check(out.flatten(0, -2), x_MK @ weight_NK.T + bias_N, rounded=True)
    taken = whole.grad[:, :1] if first_only else whole.grad
    check(taken.flatten(0, -2), upstream_MN @ weight_NK, rounded=True)
    if first_only:
        assert not whole.grad[:, 1:].any()
    exact = kernels_torch.mkl_product() is not None
    gradient_NK = torch.cat([weight.grad for weight in weights])
    check(gradient_NK, upstream_MN.T @ x_MK, rounded=not exact)
    check(torch.cat([bias.grad for bias in biases]), upstream_MN.sum(0), rounded=True)


def test_gradients_are_added_to_existing_ones(products):
    weights, biases = layers()
    flat = torch.zeros(sum(weight.numel() for weight in weights))
    start = 0
    for weight in weights:  # views of one buffer, as in training
        weight.grad = flat[start : start + weight.numel()].view_as(weight)
        start += weight.numel()
    x, upstream = inputs(6, 16, seed=5), inputs(6, sum(WIDTHS), seed=6)
    sums = []
    for _ in range(2):
        linear(x, weights, biases).backward(upstream)
        sums.append(flat.clone())
    assert flat.any()
    torch.testing.assert_close(sums[1], 2 * sums[0], rtol=1e-6, atol=1e-7)


def test_frozen_layers_get_no_gradient_and_pass_on_their_input_s(products):
    x = inputs(6, 16, seed=5).requires_grad_()
    weights, biases = layers(frozen=(0, 2))
    linear(x, weights, biases).backward(inputs(6, sum(WIDTHS), seed=6))
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        assert (weight.grad is None) == (bias.grad is None) == (number != 1)
    trained, others = layers()
    other_x = x.detach().clone().requires_grad_()
    linear(other_x, trained, others).backward(inputs(6, sum(WIDTHS), seed=6))
    torch.testing.assert_close(weights[1].grad, trained[1].grad)
    torch.testing.assert_close(x.grad, other_x.grad)


def test_a_gradient_of_recomputed_activations_is_added_once(products):
    """Under gradient checkpointing the forward pass runs again within the backward pass."""
    once, twice = layers(), layers()
    x, upstream = inputs(6, 16, seed=5).requires_grad_(), inputs(6, sum(WIDTHS), seed=6)
    linear(x, *once).backward(upstream)
    again = torch.utils.checkpoint.checkpoint(linear, x, *twice, use_reentrant=False)
    again.backward(upstream)
    for kept, computed in zip(once[0], twice[0], strict=True):
        torch.testing.assert_close(computed.grad, kept.grad)


@pytest.mark.parametrize("attend", [attend_fused, attend_plainly])
def test_attention_without_a_mask_is_that_with_a_mask_of_zeros(attend):
    """A GPU chooses flash attention only where there is no mask."""
    query, key, value = (inputs(2, 3, 5, 8, seed=seed).float() for seed in (1, 2, 3))
    zeros_BT = torch.zeros(2, 5)
    with_mask, without = (attend(query, key, value, one, 0.0) for one in (zeros_BT, None))
    torch.testing.assert_close(without, with_mask)
