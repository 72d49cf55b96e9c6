"""Which data frames a run lets go of, and when; without Spark."""

import pytest

from howdah.etl.workspace.kept import Kept, release


class Frame:
    """Counts how often it is unpersisted. Equal to all others: Spark's compare columns."""

    def __init__(self):
        self.gone = 0

    def unpersist(self):
        self.gone += 1

    def __eq__(self, other):
        return True

    __hash__ = None


def test_frames_from_a_place_on_go_but_those_that_are_named():
    frames = [Frame() for _ in range(4)]
    kept = list(frames)
    release(kept, 1, but=[frames[2]])
    assert [frame.gone for frame in frames] == [0, 1, 0, 1]
    assert [id(frame) for frame in kept] == [id(frames[0]), id(frames[2])]


def test_at_the_end_all_go_also_after_a_failure():
    frames = [Frame(), Frame()]
    with pytest.raises(KeyError), Kept(frames):
        raise KeyError
    assert [frame.gone for frame in frames] == [1, 1]
