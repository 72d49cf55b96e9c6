"""DistilBERT's forward pass in torch as a CPU does it fastest; on a GPU, Hugging Face's own.

Weights, names and results are those of transformers' model. What is left out on a CPU: a random
number in double precision for each dropped element, drawn on one thread while the others wait (a
fifth of the time that is not matrix products), and a softmax that looks out for rows without any
token, of which there are none here. Measured in docs/decisions/training-speed.md.

Source: transformers' `modeling_distilbert.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import DistilBertForSequenceClassification

__all__ = ["DistilBertClassifier", "dropout_factors"]

_BLOCKED = -1e9  # added to attention scores of padding
_DRAWS = 2**16  # values of a draw: a rate is met to 1 in 65,536


class DistilBertClassifier(DistilBertForSequenceClassification):
    """Hugging Face's model: its parameters, its names, its way to enable gradient checkpointing."""

    def forward(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Logits [B, C].

        Args:
            ids_BT: int64.
            mask_BT: integers, 1 for tokens, 0 for padding; a row has one token at least.
        """
        if ids_BT.is_cuda:
            return super().forward(input_ids=ids_BT, attention_mask=mask_BT).logits
        heads = self.config.n_heads
        # One bias for each row and head, for all its queries.
        blocked_N1T = torch.zeros(mask_BT.shape).masked_fill_(mask_BT == 0, _BLOCKED)
        blocked_N1T = blocked_N1T[:, None].repeat_interleave(heads, dim=0)
        hidden_BTD = self._embed(ids_BT)
        for layer in self.distilbert.transformer.layer:
            if self.training and self.is_gradient_checkpointing:
                hidden_BTD = checkpoint(
                    self._layer, layer, hidden_BTD, blocked_N1T, use_reentrant=False
                )
            else:
                hidden_BTD = self._layer(layer, hidden_BTD, blocked_N1T)
        first_BD = F.relu(self.pre_classifier(hidden_BTD[:, 0]))
        return self.classifier(self._dropped(first_BD, self.dropout.p))

    def _embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        embeddings = self.distilbert.embeddings
        words_BTD = embeddings.word_embeddings(ids_BT)
        places_TD = embeddings.position_embeddings.weight[: ids_BT.shape[1]]
        return self._dropped(embeddings.LayerNorm(words_BTD + places_TD), embeddings.dropout.p)

    def _layer(
        self, layer: torch.nn.Module, hidden_BTD: torch.Tensor, blocked_N1T: torch.Tensor
    ) -> torch.Tensor:
        attended_BTD = self._attend(layer.attention, hidden_BTD, blocked_N1T)
        hidden_BTD = layer.sa_layer_norm(attended_BTD + hidden_BTD)
        inner_BTH = layer.ffn.activation(layer.ffn.lin1(hidden_BTD))
        outer_BTD = self._dropped(layer.ffn.lin2(inner_BTH), layer.ffn.dropout.p)
        return layer.output_layer_norm(outer_BTD + hidden_BTD)

    def _attend(
        self, attention: torch.nn.Module, hidden_BTD: torch.Tensor, blocked_N1T: torch.Tensor
    ) -> torch.Tensor:
        rows, tokens, width = hidden_BTD.shape
        heads = self.config.n_heads
        size = width // heads

        def split(projected_BTD: torch.Tensor) -> torch.Tensor:  # [B * heads, T, D / heads]
            parts = projected_BTD.view(rows, tokens, heads, size).transpose(1, 2)
            return parts.reshape(rows * heads, tokens, size)

        query, key, value = (
            split(linear(hidden_BTD))
            for linear in (attention.q_lin, attention.k_lin, attention.v_lin)
        )
        scores_NTT = torch.baddbmm(blocked_N1T, query, key.transpose(1, 2), alpha=size**-0.5)
        weights_NTT = self._dropped(scores_NTT.softmax(-1), attention.dropout.p)
        context = torch.bmm(weights_NTT, value).view(rows, heads, tokens, size)
        return attention.out_lin(context.transpose(1, 2).reshape(rows, tokens, width))

    def _dropped(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        if not self.training or rate == 0.0:
            return x
        return x * dropout_factors(x, rate)


def dropout_factors(like: torch.Tensor, rate: float) -> torch.Tensor:
    """What dropout multiplies each element by: 0, or 1 / (1 - rate). Drawn from torch's generator.

    Args:
        like: the shape and dtype.
        rate: share of zeros, met to 1 in 65,536.
    """
    count = like.numel()
    # Four elements of 16 bits to a draw: drawing is what one thread does alone.
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    values = draws.view(torch.int16)[:count].view(like.shape)
    dropped = round(rate * _DRAWS)
    kept = values >= dropped - _DRAWS // 2
    return kept.to(like.dtype).mul_(_DRAWS / (_DRAWS - dropped))
