"""Where a base model's files are found."""

import json

from howdah.data import modelfiles


def test_a_model_below_the_home_directory_is_found_by_every_question(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    fields = {"model_type": "bert", "vocab_size": 7}
    (tmp_path / "model" / "config.json").write_text(json.dumps(fields))
    directory = modelfiles.fetch("~/model", patterns=["config.json"])
    assert directory == str(tmp_path / "model")
    assert modelfiles.base_config("~/model")["vocab_size"] == 7
