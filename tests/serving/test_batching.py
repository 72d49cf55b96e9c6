"""Which texts are computed together, and when a version is opened: pure decisions."""

import random

import pytest

from howdah.serving.compute.batching import choose, padded, retry_seconds
from howdah.serving.versions.reloading import Look, decide


def test_every_batch_has_the_oldest_and_keeps_to_the_budget():
    rng = random.Random(7)
    for _ in range(300):
        lengths = [rng.choice([2, 5, 9, 40, 128]) for _ in range(rng.randint(1, 40))]
        budget = rng.choice([1, 64, 256, 1024])
        chosen = choose(lengths, budget)
        assert chosen[0] == 0 and sorted(set(chosen)) == chosen
        of_batch = [lengths[index] for index in chosen]
        assert padded(of_batch) <= budget or len(chosen) == 1
        # What was left out would not fit beside them, or would pad more than what was taken.
        left = [n for index, n in enumerate(lengths) if index not in chosen]
        if any(n <= lengths[0] for n in left):
            assert (len(chosen) + 1) * lengths[0] > budget


def test_all_texts_are_computed_and_padding_is_small_where_lengths_differ():
    rng = random.Random(3)
    waiting = [rng.randint(3, 60) for _ in range(400)]
    tokens, computed, batches = sum(waiting), 0, 0
    while waiting:
        chosen = set(choose(waiting, 1024))
        computed += padded([waiting[index] for index in chosen])
        waiting = [n for index, n in enumerate(waiting) if index not in chosen]
        batches += 1
    assert batches < 30
    assert computed < 1.15 * tokens  # in their order of arrival it is 1.9


@pytest.mark.parametrize(
    ("waiting", "rate", "seconds"), [(0, 0.0, 1), (100, 50.0, 2), (10**6, 1.0, 60), (1, 1e9, 1)]
)
def test_retry_after_is_when_the_queue_is_worked_off(waiting, rate, seconds):
    assert retry_seconds(waiting, rate) == seconds


def test_a_refused_version_is_tried_again_only_when_something_has_changed():
    v2, repaired = Look(2, "a"), Look(2, "b")
    assert decide(2, v2, None) == "stay"
    assert decide(1, v2, None) == "open"
    assert decide(1, v2, v2) == "stay"
    assert decide(1, repaired, v2) == "open"
    assert decide(1, Look(3, "a"), v2) == "open"
