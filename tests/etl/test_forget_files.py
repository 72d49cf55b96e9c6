"""`howdah forget` with ids that are small numbers: each kind of file by its structure, no words."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import cli, storage
from howdah.data.manifest import load_dataset
from tests.support.appended import build_appended, ids_of

CARD = '<div class="id">test · <code>{}</code> · 9 tokens</div>'
STAYS = {
    "run.json": json.dumps({"run_id": "r1", "step": 5, "attempts": [{"attempt": 5, "pid": 120}]}),
    "metrics.jsonl": '{"step": 5, "loss": 5.0}\n{"step": 120, "loss": 1}\n',
    "config.yaml": "seed: 5\n",
    "report.html": f"<td>5</td><pre>1</pre>{CARD.format(7)}<td>120</td>",
    "export/vocab.txt": "1\n5\n12\n120\n",
    "logs/rank-0.log": "step 5 of 120: loss 1, 12 rows\n",
}


def howdah(words: list[str]) -> int:
    return cli.run(lambda: cli.app(words, standalone_mode=False), as_json="--json" in words)


def parquet(table: dict) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    return buffer.getvalue()


def put(directory, files: dict[str, str | bytes]) -> None:
    for name, data in files.items():
        path = f"{directory}/{name}"
        storage.make_dirs(storage.parent(path))
        storage.write_whole(path, data.encode() if isinstance(data, str) else data)


@pytest.mark.parametrize("row_id", ["1", "5", "12", "120"])
def test_ids_that_are_small_numbers(row_id, tmp_path, tiny_model_dir, capsys):
    root, run = str(tmp_path / "data"), str(tmp_path / "runs/one")
    made = build_appended(root, model_dir=tiny_model_dir, days=2, numbered=True)
    info = {"run_id": "r1", "dataset": {"hash": made.manifest.dataset_hash}}
    put(run, STAYS | {"export/howdah.json": json.dumps(info)})
    other = f"row {row_id}, and {row_id} again"
    put(run, {
        "predictions/test.parquet": parquet({"id": [row_id, "7"], "text": ["gone", other]}),
        "predictions/p.csv": f'id,text\n{row_id},"gone\nx"\n7,"{other}"\r\n',
        "predictions/p.tsv": f"text\tid\ngone\t{row_id}\n{other}\t7\n",
        "predictions/p.jsonl": f'{{"id": "{row_id}", "text": "gone"}}\n'
                               f'{{"id":   7, "text": "{other}"}}\n{{"id": {row_id}}}\n',
        "predictions/p.csv.gz": gzip.compress(f"id,text\n{row_id},gone\n7,{row_id}\n".encode()),
    })  # fmt: skip
    put(f"{tmp_path}/runs/two", STAYS | {"report.html": f"<td>5</td>{CARD.format(row_id)}"})
    (tmp_path / "ids").write_text(f"{row_id}\n")
    words = ["forget", "--ids", str(tmp_path / "ids"), "--dataset", root,
             "--runs", str(tmp_path / "runs"), "--json"]  # fmt: skip
    before = ids_of(made)
    there = any(row_id in rows for rows in before.values())
    assert howdah(words) == 0
    found = json.loads(capsys.readouterr().out)
    outside = {path.rpartition("/")[2]: n for path, n in found["files"].items() if run in path}
    assert outside == {"test.parquet": 1, "p.csv": 1, "p.tsv": 1, "p.jsonl": 2, "p.csv.gz": 1}
    assert bool(found["versions"]) == there == bool(found["models"])
    assert howdah([*words, "--apply"]) == 0
    capsys.readouterr()
    for name, text in STAYS.items():
        assert storage.read_text(f"{run}/{name}") == text
    assert not storage.exists(f"{tmp_path}/runs/two/report.html")
    assert storage.read_text(f"{run}/predictions/p.csv") == f'id,text\n7,"{other}"\r\n'
    assert storage.read_text(f"{run}/predictions/p.tsv") == f"text\tid\n{other}\t7\n"
    assert storage.read_text(f"{run}/predictions/p.jsonl") == f'{{"id":   7, "text": "{other}"}}\n'
    assert pq.read_table(f"{run}/predictions/test.parquet").to_pylist() == [
        {"id": "7", "text": other}
    ]
    rest = gzip.decompress(storage.read_bytes(f"{run}/predictions/p.csv.gz"))
    assert rest == f"id,text\n7,{row_id}\n".encode()
    after = ids_of(load_dataset(root))
    for split, rows in before.items():
        assert after[split] == [one for one in rows if one != row_id]
    # a second run finds none, and changes nothing
    for more in ([], ["--apply"]):
        assert howdah([*words, *more]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["files"] == {} and said["versions"] == [] and said["changed"] == []
