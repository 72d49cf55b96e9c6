"""Waiting for a condition; the limit only detects a hang."""

import time


def wait_until(condition, seconds=60.0):
    """Until `condition()` holds, at last; gives what it said."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds:.0f} s"
        time.sleep(0.05)
    return value
