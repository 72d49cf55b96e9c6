"""Files from first contact through the whole of `howdah etl`, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.data.manifest import load_dataset
from tests.etl.test_pipeline import sentences
from tests.fixtures.spark import FEW_JOBS, etl

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark, tmp_path, tiny_model_dir, capsys) -> Callable[..., tuple[int, dict]]:
    def run(source: Path, *words: str) -> tuple[int, dict]:
        data = {"source": str(source), "dataset": str(tmp_path / "dataset"), **FEW_JOBS}
        data["columns"] = {"id": "id"}
        settings = loader.from_dict({"data": data, "model": {"base": tiny_model_dir}})
        path = tmp_path / "run.yaml"
        path.write_text(loader.dump_yaml(settings))
        code = etl(["--config", str(path), "--json", *words])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) | {"said": captured.err}

    return run


def rows(ends: list[str], more: str = "") -> str:
    return "".join(
        f"r{n},{text}{more if n % 7 == 0 else ''},{'ab'[n % 2]}{ends[n * len(ends) // 120]}"
        for n, text in enumerate(sentences(120))
    )


def test_a_csv_that_mixes_line_ends_loses_no_row(run, tmp_path):
    source = tmp_path / "cat of two.csv"
    source.write_bytes(("id,text,label\r\n" + rows(["\r\n", "\n", "\r\r\n"])).encode())
    code, answer = run(source)
    assert code == 0, answer
    manifest = load_dataset(str(tmp_path / "dataset")).manifest
    assert manifest.quality["read"] == manifest.quality["kept"] == 120


def test_a_csv_of_windows_is_explained_and_then_read(run, tmp_path):
    source = tmp_path / "excel.csv"
    source.write_bytes(("id,text,label\n" + rows(["\n"], " caf\u00e9 \u20ac5")).encode("cp1252"))
    code, answer = run(source)
    assert code == 3 and "another character set" in answer["what"]
    assert answer["got"] == "18 of 120 rows are not UTF-8; all of them decode as windows-1252"
    assert "data: {csv: {encoding: windows-1252}}" in answer["remedy"]
    code, answer = run(source, "--set", "data.csv.encoding=windows-1252")
    assert code == 0, answer
    manifest = load_dataset(str(tmp_path / "dataset")).manifest
    assert manifest.quality["kept"] == 120


def test_a_few_rows_in_another_character_set_are_told(run, tmp_path):
    lines = ("id,text,label\n" + rows(["\n"])).splitlines(keepends=True)
    data = "".join(lines).encode() + "r120,a caf\u00e9 that nobody decodes,a\n".encode("cp1252")
    source = tmp_path / "one.csv"
    source.write_bytes(data)
    code, answer = run(source)
    assert code == 0, answer
    assert "1 of 121 rows are not UTF-8; all of them decode as windows-1252" in answer["said"]
