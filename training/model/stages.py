"""Which rank has which layers (pipeline parallel), and the order of their passes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from howdah.data.family import ModelFamily

__all__ = ["Stage", "order"]


@dataclass(frozen=True)
class Stage:
    """One rank's part of a model's layers."""

    number: int
    count: int
    layers: range

    @classmethod
    def of(cls, number: int, count: int, layers: int) -> Stage:
        """
        >>> [Stage.of(number, 3, 8).layers for number in range(3)]
        [range(0, 2), range(2, 5), range(5, 8)]
        """
        return cls(number, count, range(layers * number // count, layers * (number + 1) // count))

    @property
    def first(self) -> bool:
        """It has the embeddings."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """It has the classifier."""
        return self.number == self.count - 1

    def has(self, family: ModelFamily, name: str) -> bool:
        """Whether the parameter of this name is this stage's."""
        if self.count == 1:
            return True
        if name.startswith(family.prefix + family.embeddings):
            return self.first
        if name in family.classifier_names:
            return self.last
        return name.startswith(tuple(family.layer_name(number) for number in self.layers))


def order(stage: Stage, micros: int) -> list[tuple[str, int]]:
    """The passes of a step on one rank: (forward or backward, number of the micro-batch).

    >>> order(Stage.of(0, 2, 2), 3)[:3]
    [('forward', 0), ('forward', 1), ('backward', 0)]
    """
    ahead = min(stage.count - 1 - stage.number, micros)
    found = [("forward", number) for number in range(ahead)]
    for number in range(micros - ahead):
        found += [("forward", ahead + number), ("backward", number)]
    return found + [("backward", number) for number in range(micros - ahead, micros)]
