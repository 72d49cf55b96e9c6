"""A model that howdah/library.py opens in this process, with PyTorch."""

import pytest

from howdah import library
from howdah.errors import ModelError
from tests.runs.finished_runs import LABELS, finished_run


def test_an_opened_model_scores_texts(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    model = library.open_model(run, framework="torch")
    assert (model.labels, model.run_id, model.framework) == (LABELS, "run-1", "torch")
    scores_NC = model.scores([model.clean_text(text) for text in ("the cat", "a dog")])
    assert scores_NC.shape == (2, len(LABELS))
    assert scores_NC.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert model.scores([]).shape == (0, len(LABELS))
    with pytest.raises(ModelError, match="no such model"):
        library.open_model(str(tmp_path / "none"))
