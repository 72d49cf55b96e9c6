"""The parts of the model, its gradients and AdamW's moments that a rank has (training.parallel).

    training.parallel   weights of a rank    gradients          optimizer
    shard: none         all                  FlatGradients      WholeAdamW
    shard: optimizer    all                  FlatGradients      DividedAdamW (ZeRO-1)
    shard: full         a part of each       ShardedGradients   ShardedAdamW (FSDP2)

For the purpose of each see docs/decisions/sharding.md.
"""

from __future__ import annotations

import os
from itertools import chain

from howdah.config.model import Config
from howdah.core.cache import cache_root
from howdah.core.machine import map_blocks_from, return_free_memory
from howdah.models.forward import forward_torch
from howdah.models.forward.sharded_torch import shard
from howdah.training.checkpoint.read import MODEL, model_weights
from howdah.training.comm.base import Comm
from howdah.training.optim.adamw_torch import DividedAdamW, WholeAdamW
from howdah.training.optim.flat_torch import Shares, flatten
from howdah.training.optim.gradients_torch import FlatGradients
from howdah.training.optim.schedule import FUSION_GROUPS
from howdah.training.optim.sharded_adamw_torch import ShardedAdamW, ShardedGradients
from howdah.training.preparation.job import TrainingJob
from howdah.training.resuming import Resumed

_MAPPED = 2**20
"""Blocks of this size (bytes) and more are mapped. Parameters that FSDP2 gathers live only for one
module, between activations: in glibc's heap they left 1.1 GiB of free gaps in 0.9 GiB in use
(docs/benchmarks.md)."""

Gradients = FlatGradients | ShardedGradients
Optimizer = WholeAdamW | DividedAdamW | ShardedAdamW


class Layout:
    """A rank's part of the model, which is built in a run's first world; `join` builds the objects
    of each world.

    Args:
        tensors: the state to begin with. The model's weights are removed from it, so that no second
            copy stays.
        device: "cpu" or "cuda".
    Attributes:
        net: the module. With `shard: full` its parameters are parts of the weights.
        gradients: gradients of its trainable parameters; `reduce_` sums them over the ranks.
    """

    def __init__(
        self, config: Config, job: TrainingJob, comm: Comm, tensors: Resumed, device: str
    ) -> None:
        self._training, parallel = config.training, config.training.parallel
        self._full = parallel.shard == "full" and comm.size > 1
        if self._full and device == "cpu":
            map_blocks_from(_MAPPED)
        family, shape = job.base.family, job.model_config
        self.net = forward_torch.build(
            shape,
            model_weights(tensors),
            num_labels=len(job.labels),
            training=config.training,
            model=config.model,
            precision=job.precision,
            first_type_ends=job.first_type_ends,
            device="meta" if self._full else device,
        )
        if self._full:
            shard(self.net, self.net.parts(), comm.mesh(device), device)
            self.load(tensors)
        self._trainable = {
            name: tensor for name, tensor in self.net.named_parameters() if tensor.requires_grad
        }
        for name in [name for name in tensors if name.startswith(MODEL)]:
            del tensors[name]  # the model has its own copy
        return_free_memory()
        words = family.word_embeddings
        self._flat = None
        if parallel.shard == "optimizer":
            self._flat = flatten(self._trainable, words=words)
        self.gradients: Gradients = (
            ShardedGradients(self._trainable)
            if self._full
            else FlatGradients(self._trainable, words=words)
        )
        self._whole: WholeAdamW | None = None

    def load(self, tensors: Resumed) -> None:
        """Load the model's weights from the state to resume from."""
        forward_torch.import_weights(self.net, model_weights(tensors).items())

    def join(
        self, job: TrainingJob, comm: Comm, tensors: Resumed, updates: int, compression: str
    ) -> Optimizer:
        """Arrange the gradients' sums for these ranks. Every rank enters.

        Args:
            tensors: AdamW's moments after `updates` updates; missing ones are zeros.
            compression: "none", "bf16" or "int8".
        Returns:
            The optimizer with these moments.
        """
        training, shares = self._training, None
        directory = os.path.expanduser(training.shard_cache_directory or cache_root())
        if self._full:
            optimizer = ShardedAdamW(self.net, self._trainable, training, directory=directory)
        elif self._flat is not None:
            shares = Shares.of(self.gradients.layout, comm.rank, comm.size)
            optimizer = DividedAdamW(
                self._trainable, self._flat, self.gradients, shares, training, directory=directory
            )
        else:
            optimizer = self._whole = self._whole or WholeAdamW(self._trainable, training)
        # With divided moments every rank enters while `rest` iterates.
        optimizer.load(chain(tensors.items(), tensors.rest), updates)
        if not self._full:
            self.gradients.arrange(
                FUSION_GROUPS,
                sparse_embeddings=job.sparse_embeddings,
                shares=shares,
                compression=compression,
            )
        return optimizer
