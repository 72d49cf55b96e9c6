"""What the light stand-in for a training (tests/workers/light) has done."""


def check_state(one):
    """No step is lost or counted twice: the state always is the number of steps."""
    rows = [row for row in one.did() if row["what"] == "step"]
    assert rows
    assert all(row["value"] == row["step"] for row in rows)
    return rows
