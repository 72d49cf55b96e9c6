"""The server's last hour: requests and latency on its page."""

from howdah.serving.compute.last_hour import LastHour


def test_an_hour_forgets_what_is_older_and_its_quantiles_are_exact_to_a_bin():
    now = [1000.0]
    hour = LastHour(clock=lambda: now[0])
    assert hour.hour().median is None and hour.hour().minutes == 0
    for milliseconds in range(1, 101):
        hour.add(milliseconds / 1000, answered=True)
    hour.add(30.0, answered=False)
    summary = hour.hour()
    assert (summary.answered, summary.refused) == (100, 1)
    assert 0.0475 < summary.median < 0.0525 and 0.0905 < summary.slowest < 0.1
    now[0] += 30 * 60
    hour.add(1.0, answered=True)
    assert (hour.hour().answered, hour.hour().minutes) == (101, 30)
    now[0] += 31 * 60
    summary = hour.hour()
    assert (summary.answered, summary.refused, summary.minutes) == (1, 0, 60)
    assert 0.95 < summary.median < 1.05
    now[0] += 60 * 60
    assert hour.hour().answered == 0 and hour.hour().slowest is None
