"""The batches as a torch `IterableDataset`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from howdah.training.data.readers import BatchSource


class TorchDataset(torch.utils.data.IterableDataset):
    """Micro-batches of `source`: {input_ids [B, T], attention_mask [B, T], labels [B], weights [B],
    global_weight []}; for `DataLoader(dataset, batch_size=None)`, or to iterate as it is."""

    def __init__(self, source: BatchSource) -> None:
        super().__init__()
        self.source = source

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.source:
            tensors = {name: torch.from_numpy(array) for name, array in batch.arrays().items()}
            tensors["global_weight"] = torch.tensor(batch.global_weight)
            yield tensors
