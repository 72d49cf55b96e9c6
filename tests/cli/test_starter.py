"""`howdah config init --source` on files of which a column cannot be named."""

import json

import pytest
import yaml

from howdah.cli.begin import starter
from howdah.config.data import DataSection
from howdah.errors import DataError, render
from howdah.etl import peek


def write(path, content) -> str:
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize("point", [".", ","])
def test_a_file_of_numbers_as_targets_is_told_the_task(tmp_path, point):
    rows = "".join(f"{n};a text of row {n};{n}{point}5\n" for n in range(60))
    text, notes = starter.from_source(write(tmp_path / "m.csv", "id;text;price\n" + rows))
    assert "label: label" in text and "text: text" in text
    assert "for numbers, as in price, set data.task: regression" in notes[0]


def test_a_label_is_not_taken_for_the_text(tmp_path):
    rows = [{"msg": {"body": f"a text of row {n}"}, "label": f"a label {n % 2}"} for n in range(60)]
    path = write(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    text, notes = starter.from_source(path)
    written = yaml.safe_load(text)
    assert written["data"]["columns"] == {"text": "msg.body", "label": "label"} and not notes
    assert peek.look(DataSection(**written["data"])).rows == 60
    flat = "".join(json.dumps({"n": n, "label": row["label"]}) + "\n" for n, row in enumerate(rows))
    text, notes = starter.from_source(write(tmp_path / "m.jsonl", flat))
    assert "text: text" in text and "label: label" in text
    assert "no column looks like a text" in notes[0]


def test_a_name_that_a_header_has_twice_is_no_column(tmp_path):
    rows = "".join(f"{n},a text {n},zz,{'ab'[n % 2] * 9}\n" for n in range(60))
    text, notes = starter.from_source(write(tmp_path / "m.csv", "id,text,text,label\n" + rows))
    assert "text: text" in text and "label: label" in text
    assert "names the column 'text' 2 times" in notes[0]


def test_a_tsv_of_commas_is_told_its_name(tmp_path):
    content = "id,text,label\n" + "".join(f"{n},a text {n},{'ab'[n % 2]}\n" for n in range(60))
    path = write(tmp_path / "m.tsv", content)
    for attempt in (starter.from_source, lambda source: peek.look(DataSection(source=source))):
        with pytest.raises(DataError) as caught:
            attempt(path)
        message = render(caught.value)
        assert "no tab: name the file .csv" in message and "columns: {" not in message
    text, _ = starter.from_source(write(tmp_path / "m.csv", content))
    assert "text: text" in text and "label: label" in text
