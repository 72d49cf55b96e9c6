"""A model that howdah/library.py opens in this process, with PyTorch."""

import pytest

from howdah import library
from howdah.errors import ModelError, UsageError
from tests.runs.finished_runs import LABELS, finished_run


def test_predictions_are_a_table_with_the_scores_of_all_labels(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    model = library.open_model(run, framework="torch")
    assert (model.labels, model.run_id, model.framework) == (LABELS, "run-1", "torch")
    table = model.predict(["the cat", "", "a dog and the cat"])
    assert table.columns.tolist() == [
        "text", "label", "score", "error", "score/cat", "score/dog",
    ]  # fmt: skip
    assert table.error.tolist() == [None, "the text is empty", None]
    assert table.label[1] is None
    for row in (0, 2):
        assert table.score[row] == table.loc[row, ["score/cat", "score/dog"]].max()
        assert table.loc[row, ["score/cat", "score/dog"]].sum() == pytest.approx(1.0, abs=1e-5)
    assert model.predict([]).empty
    with pytest.raises(UsageError, match="list of texts"):
        model.predict("the cat")
    with pytest.raises(UsageError, match=r"texts\[1\]"):
        model.predict(["the cat", 3])
    with pytest.raises(ModelError, match="no model"):
        library.open_model(str(tmp_path / "none"))
