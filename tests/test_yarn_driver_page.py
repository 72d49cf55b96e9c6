"""What the driver tells of its job: the status, its page and the loss curve."""

from tests.driver_world import World
from yarn import driver_page, driver_status


def test_the_page_shows_names_as_text():
    w = World()
    w.come("<b>a</b>", "b", node="<script>alert(1)</script>")
    chronicle = driver_status.Chronicle("application_1_0001", 1)
    chronicle.event("<i>lost</i>")
    status = chronicle.status(w.job)
    text = driver_page.page(status, [(1, 2.0), (2, 1.0)], "run & co")
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "run &amp; co" in text
    assert "polyline" in text
    assert "http://" not in text  # nothing is fetched from elsewhere
    assert "https://" not in text


def test_repeated_steps_replace_their_points_of_the_curve():
    w = World()
    w.train("a", "b")
    chronicle = driver_status.Chronicle("x", 1)
    for step in (1, 2, 3, 2, 3):
        w.job.members["a"].step = {"step": step, "loss": 1.0 / step, "total_steps": 10}
        done = chronicle.progress(w.job)
    assert chronicle.curve() == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert done == 0.3
    assert chronicle.status(w.job)["state"] == "running"


def test_the_run_in_mlflow_is_in_the_status():
    w = World()
    chronicle = driver_status.Chronicle("x", 1)
    assert chronicle.status(w.job)["mlflow_run_id"] is None
    assert chronicle.heard({"type": "tracking", "mlflow_run_id": "abc", "process": 1})
    assert chronicle.status(w.job)["mlflow_run_id"] == "abc"
