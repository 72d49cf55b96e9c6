"""Errors that cross processes as JSON."""

import json

import pytest

from howdah.errors import CheckFailed, ClusterError, HowdahError, QuotaExceeded, TrainingError
from howdah.training.checkpoint.fence import FencedOff


def test_an_error_survives_json():
    full = QuotaExceeded("no room", where="hdfs://h/d", got="7 names", remedy="ask for more")
    both = ClusterError("two problems", problems=[CheckFailed("no", expected="0.9"), full])
    back = HowdahError.from_dict(json.loads(json.dumps(both.as_dict())))
    assert back.as_dict() == both.as_dict() and str(back) == str(both)
    assert [type(one) for one in (back, *back.problems)] == [
        ClusterError, CheckFailed, QuotaExceeded,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        FencedOff("taken over").as_dict(),  # a class of another module
        {"error": "ValueError", "what": "taken over"},  # a defect (training/process/failure.py)
        {"error": "Sequence", "what": "taken over"},  # no error at all
        {"what": "taken over"},
    ],
)
def test_an_error_of_an_unknown_class_becomes_the_readers_class(fields):
    back = TrainingError.from_dict(fields)
    assert type(back) is TrainingError and back.what == "taken over" and back.problems == []
