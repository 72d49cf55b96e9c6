"""`howdah drift` with a real model: its profile made from a dataset, scored partitions and files
judged, the page in the way a reader gets it."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import yaml

from howdah import storage
from howdah.errors import CheckFailed, DataError, ModelError, NotFound, UsageError
from howdah.models.profile.profile import Profile, reference_of
from howdah.serving.drift import scored
from tests.fixtures.dataset import LABELS, build_dataset
from tests.runs.finished_runs import finished_run
from tests.support.models.versions import manifest_of

WORDS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model_dir):
    """A run's export with a profile that `make_reference` has made, and its configuration."""
    from howdah.config.loader import load
    from howdah.data.encode import Encoder
    from howdah.models.opened.opened import open_model
    from howdah.training.evaluation import profile_writer as reference

    root = tmp_path_factory.mktemp("drift")
    dataset = build_dataset(
        str(root / "data" / "v=d1"), model_dir=tiny_model_dir,
        rows={"train": 600, "validation": 300, "test": 25},
    )  # fmt: skip
    run = finished_run(
        str(root / "run"), tiny_model_dir, run_id="zoo-1",
        dataset=dataset.manifest.dataset_hash, labels=LABELS,
    )  # fmt: skip
    values = {
        "run": {"name": "zoo", "directory": run},
        "data": {"dataset": dataset.path, "columns": {"id": "id"}},
        "publish": {"directory": str(root / "models")},
        "training": {"threads_per_rank": 1},
    }
    path = root / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    config = load(str(path))
    made = reference.make_reference(config, run)
    words = Encoder.load(tiny_model_dir)._tokenizer.get_vocab()
    words = sorted(word for word in words if word.isalpha())[:WORDS]
    return type(
        "Place", (), {
            "root": root, "run": run, "config": config, "path": str(path), "made": made,
            "dataset": dataset, "words": words, "served": open_model(run, threads=1),
        },
    )  # fmt: skip


def texts(place, count: int, seed: int, words: list[str] | None = None) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(words or place.words, 12)) for _ in range(count)]


def test_a_reference_is_made_by_scoring_the_datasets_rows(place):
    assert place.made == storage.join(place.run, "export", "profile.json")
    profile = reference_of(storage.join(place.run, "export"))
    assert (profile.counts.rows, profile.counts.texts) == (300, 600)
    assert profile.reference.split == "validation"
    assert profile.bins.labels == LABELS
    assert profile.reference.spread
    labels = np.concatenate(_validation_labels(place))
    assert profile.reference.right <= len(labels)
    estimate = profile.counts.calibrated_nano / 300 / 1e9
    assert estimate == pytest.approx(profile.reference.right / 300, abs=0.02)


def _validation_labels(place):
    from howdah.data.splits.shards import ShardSet

    return ShardSet(place.dataset, "validation").labels


def test_a_reference_is_not_made_of_another_dataset(place, tiny_model_dir):
    from howdah.training.evaluation.profile_writer import make_reference

    other = build_dataset(
        str(place.root / "other" / "v=d2"), model_dir=tiny_model_dir, seed=9,
        rows={"train": 30, "validation": 10},
    )  # fmt: skip
    data = place.config.data.model_copy(update={"dataset": other.path})
    config = place.config.model_copy(update={"data": data})
    info = storage.read_json(storage.join(place.run, "export", "howdah.json"))
    assert info["dataset"]["hash"] != "v2"
    storage.write_whole(
        storage.join(other.path, "manifest.json"),
        storage.read_bytes(storage.join(other.path, "manifest.json")).replace(
            other.manifest.dataset_hash.encode(), b"another"
        ),
    )
    with pytest.raises(ModelError, match="trained on another dataset"):
        make_reference(config, place.run)


def write_scored(place, table: str, partition: str, rows: list[str], *, version=None) -> Profile:
    """What `howdah score` leaves for a partition."""
    from howdah.serving.prediction.classify import classify
    from howdah.serving.prediction.rows import Row

    profile = Profile.like(reference_of(storage.join(place.run, "export")))
    classify(place.served, [Row(str(n), text) for n, text in enumerate(rows)], profile.add)
    directory = storage.join(place.run, "scored", table, partition)
    storage.make_dirs(directory)
    storage.write_whole(storage.join(directory, "profile.json"), profile.to_bytes())
    marker = {"model": {"version": version}, "scored_at": "2026-11-01T00:00:00+00:00"}
    storage.write_whole(storage.join(directory, "done.json"), json.dumps(marker).encode())
    return profile


def test_a_scored_partition_is_judged_with_those_before_it(place):
    from howdah.serving.drift.page import write
    from howdah.serving.scoring.drift import of_table, words_of

    for day in range(1, 5):
        write_scored(place, "db.s", f"ds=2026-11-0{day}", texts(place, 150, day))
    (place.root / "run" / "scored" / "db.s" / "ds=2026-10-31").mkdir()
    (place.root / "run" / "scored" / "db.s" / "ds=2026-10-31" / "profile.json").write_text("{}")
    findings = of_table(place.config, place.run, "db.s", "ds=2026-11-03")
    assert [point.name for point in findings.points] == [f"ds=2026-11-0{n}" for n in (1, 2, 3)]
    assert findings.verdict.rows == 150
    assert findings.verdict.column("length").state == "alarm"  # twelve words, always
    with pytest.raises(CheckFailed) as caught:
        raise findings.error("page.html")
    assert "length" in [problem.where for problem in caught.value.problems]
    assert of_table(place.config, place.run, "db.s", "ds=2026-11-04", last=2).points[0].name == (
        "ds=2026-11-03"
    )
    paths = write(findings, str(place.root / "out"), words_of(storage.join(place.run, "export")))
    page = storage.read_text(paths["html"])
    assert "Drift: these rows are not like the reference" in page
    assert "large change" in page and "scored <time" in page and "compared <time" in page
    assert re.search(r"texts are (\d+ % \w+er than|as long as) in training", page)
    assert page.count("<svg") >= 4
    loaded = page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in loaded
    assert len(page) < 200_000
    written = storage.read_json(paths["json"])
    assert written["state"] == "alarm"
    assert written["alarms"] == [problem.where for problem in caught.value.problems]
    assert len(written["history"]) == 3


def test_the_history_of_hours_is_in_their_order(place):
    for hour in (8, 9, 10, 11):
        write_scored(place, "db.hours", f"ds=2026-11-01/hour={hour}", texts(place, 3, hour))
    shown = scored.history(place.run, "db.hours", until="ds=2026-11-01/hour=10", most=3)
    assert [one.name.rpartition("=")[2] for one in shown] == ["8", "9", "10"]


def test_scored_partitions_become_the_reference_of_what_comes_later(place):
    """A source with many copies: de-duplication took them out of the dataset, not of the days."""
    from howdah.serving.drift.judge import judge
    from howdah.serving.scoring.drift import reference_from_table

    export = storage.join(place.run, "export")
    kept = storage.read_bytes(storage.join(export, "profile.json"))
    copies = texts(place, 5, 77)

    def day(seed):
        random = np.random.default_rng(seed)
        return [*texts(place, 600, seed), *random.choice(copies, 600)]

    for number in (1, 2):
        write_scored(place, "db.copies", f"ds={number}", day(number))
    later = write_scored(place, "db.copies", "ds=3", day(3))
    assert judge(reference_of(export), later).alarms
    path = reference_from_table(place.config, place.run, "db.copies", "ds=2", last=2)
    try:
        made = reference_of(export)
        assert path == storage.join(export, "profile.json") and made.counts.rows == 2400
        assert judge(made, later).alarms == ()
        longer = write_scored(place, "db.copies", "ds=4", [f"{one} {one}" for one in day(5)])
        assert "length" in [column.name for column in judge(made, longer).alarms]
        # A day is judged against the bins that it was counted in: those stay.
        assert made.bins_id == later.bins_id
        with pytest.raises(DataError, match="too few rows"):
            write_scored(place, "db.few", "ds=1", texts(place, 20, 1))
            reference_from_table(place.config, place.run, "db.few", "ds=1")
    finally:
        storage.write_whole(path, kept)


def test_partitions_that_are_not_there_are_named(place):
    write_scored(place, "db.named", "ds=1", texts(place, 3, 1))
    with pytest.raises(UsageError, match="is not scored") as caught:
        scored.find(place.run, "db.named", "ds=2")
    assert "ds=1" in caught.value.expected
    bare = storage.join(place.run, "scored", "db.named", "ds=3")
    storage.make_dirs(bare)
    storage.write_whole(storage.join(bare, "done.json"), b"{}")
    with pytest.raises(UsageError, match="without a profile"):
        scored.find(place.run, "db.named", "ds=3")
    for no in ("today", "ds=4,path=a/b", "ds=1/ds=2"):
        with pytest.raises(UsageError, match="not a partition") as caught:
            scored.find(place.run, "db.named", no)
        assert caught.value.where == "--partition"
    write_scored(place, "db.named", "ds=4/path=a%2Fb", texts(place, 3, 1))
    write_scored(place, "db.named", "ds=4%2C5/path=50%2541", texts(place, 3, 1))
    # As `howdah score` takes them: between columns is a slash, a comma is a part of the value.
    for spelt in ("ds=4/path=a%2Fb", "ds=4,5/path=50%2541", "ds=4,5/path=50%41"):
        named = spelt.replace("50%41", "50%2541")
        assert scored.find(place.run, "db.named", spelt).name == named


def test_files_of_texts_and_of_predictions_are_judged_alike(place):
    from howdah.serving.prediction.predict import predict
    from howdah.serving.scoring.drift import of_source

    rows = texts(place, 200, 3)
    source, output = str(place.root / "new.jsonl"), str(place.root / "predicted.parquet")
    lines = [json.dumps({"id": f"r{n}", "text": text}) for n, text in enumerate([*rows, ""])]
    storage.write_whole(source, "\n".join(lines).encode())
    texts_found = of_source(place.config, place.run, source, id_column="id")
    assert (texts_found.current.counts.rows, texts_found.current.counts.empty) == (200, 1)
    made = write_scored(place, "db.files", "ds=1", rows)
    assert texts_found.current.counts.cells.tolist() == made.counts.cells.tolist()
    summary = predict(place.run, source, output, id_column="id", drift=True)
    assert summary["drift"] == texts_found.verdict.as_dict()
    by_file = of_source(place.config, place.run, output)
    assert by_file.verdict.column("tokens").state == "not measured"
    for name in ("label", "confidence"):
        assert by_file.verdict.column(name).value == pytest.approx(
            texts_found.verdict.column(name).value
        )
    assert by_file.current.counts.empty == 1
    json_lines = str(place.root / "predicted.jsonl")
    predict(place.run, source, json_lines, id_column="id")
    by_lines = of_source(place.config, place.run, json_lines)
    assert by_lines.current.counts.labels.tolist() == by_file.current.counts.labels.tolist()
    assert (by_lines.current.counts.rows, by_lines.current.counts.empty) == (200, 1)
    storage.write_whole(json_lines, storage.read_bytes(json_lines) + b'{"id": \n')
    with pytest.raises(DataError, match="a row cannot be read"):
        of_source(place.config, place.run, json_lines)
    csv = str(place.root / "truth.csv")
    answers = [place.served.labels[int(s.argmax())] for s in place.served.scores(rows)]
    truth = [f"r{n},{label if n % 4 else 'stones'}" for n, label in enumerate(answers)]
    storage.write_whole(csv, "\n".join(["id,label", *truth]).encode())
    labelled = of_source(place.config, place.run, output, labels=csv)
    expected = np.mean([n % 4 > 0 or label == "stones" for n, label in enumerate(answers)])
    assert labelled.verdict.column("accuracy").value == pytest.approx(expected)
    storage.write_whole(csv, b"id,label\nother,stones\n")
    with pytest.raises(DataError, match="no predicted row"):
        of_source(place.config, place.run, output, labels=csv)


def test_labels_for_a_model_of_another_task_are_refused_before_anything_is_read(place):
    from howdah.serving.scoring.drift import of_source, of_table

    several = str(place.root / "several")
    shutil.copytree(place.run, several)
    path = storage.join(several, "export", "config.json")
    values = storage.read_json(path) | {"problem_type": "multi_label_classification"}
    storage.write_whole(path, json.dumps(values).encode())
    for judge in (
        lambda: of_source(place.config, several, "none.csv", labels="truth.csv"),
        lambda: of_table(place.config, several, "db.none", "ds=1", labels="db.truth"),
    ):
        with pytest.raises(UsageError, match="--labels gives the accuracy") as caught:
            judge()
        assert "task multi_label" in caught.value.got


def test_a_source_that_does_not_exist_has_a_remedy_that_drift_has(place):
    from howdah.serving.scoring.drift import of_source

    with pytest.raises(NotFound) as caught:
        of_source(place.config, place.run, str(place.root / "none.csv"))
    assert "--table" in caught.value.remedy and "--master" not in caught.value.remedy


def test_rows_without_a_prediction_are_named(place):
    from howdah.serving.scoring.drift import of_source

    lines = [("k1", ""), ("k2", "any around"), ("k3", "   "), ("k4", "above also")]
    path = place.root / "some.csv"
    path.write_bytes(b"id,text\r\n" + b"".join(f"{a},{b}\r\n".encode() for a, b in lines))
    findings = of_source(place.config, place.run, str(path), id_column="id")
    notes = findings.rows_without()
    assert notes[0] == "2 of 4 rows have no prediction: 2 have no text, 0 failed otherwise"
    assert "k1" in " ".join(notes) and "k3" in " ".join(notes) and "k2" not in " ".join(notes)


def test_the_page_shows_the_rows_that_moved_and_masks_or_hides_their_texts(place):
    from howdah.serving.drift.page import render
    from howdah.serving.scoring.drift import of_source

    path = place.root / "moved.jsonl"
    rows = texts(place, 150, 3)
    lines = [json.dumps({"id": f"m{n}", "text": text}) for n, text in enumerate(rows)]
    written = " ".join(rows[0].split()[:2])
    # The longest and the shortest text: one of them shows in which way the lengths have moved.
    for text in ("me@x.de", f"{written} me@x.de " * 5):
        lines.append(json.dumps({"id": "x1", "text": text}))
    path.write_text("\n".join(lines))
    findings = of_source(place.config, place.run, str(path), id_column="id")
    assert findings.verdict.column("length").state == "alarm"
    shown = findings.rows_shown()
    assert "x1" in [one.id for rows in shown.values() for one in rows]
    page = render(findings, {})
    assert "x1" in page and written in page and "[mail]" in page and "me@x.de" not in page
    assert "me@x.de" in render(findings, {}, texts="plain")
    hidden = render(findings, {}, texts="none")
    assert "x1" in hidden and "[mail]" not in hidden and rows[1] not in hidden
    assert "me@x.de" not in json.dumps(findings.as_dict())
    # The console says it in the page's words, the largest change first.
    console = findings.lines()
    assert console[0].startswith(f"{findings.verdict.alarms[0].grade} change: ")
    assert (
        findings.verdict.alarms[0].change in page
        and findings.verdict.alarms[0].change in console[0]
    )


def test_a_model_without_a_profile_says_how_to_make_it(place):
    from howdah.serving.scoring.drift import of_source

    bare = str(place.root / "bare")
    shutil.copytree(storage.join(place.run, "export"), bare)
    (place.root / "bare" / "profile.json").unlink()
    with pytest.raises(ModelError, match="no profile") as caught:
        of_source(place.config, bare, str(place.root / "new.jsonl"))
    assert "--make-reference" in caught.value.remedy


def test_a_published_version_gets_its_profile_beside_it(place):
    from howdah.models.registry import profile_path
    from howdah.training.evaluation.profile_writer import make_reference

    version = place.root / "models" / "zoo" / "v=2"
    shutil.copytree(storage.join(place.run, "export"), version)
    (version / "profile.json").unlink()
    (version / "manifest.json").write_text(manifest_of(version))
    assert reference_of(str(version)) is None
    path = make_reference(place.config, str(version))
    assert path == str(place.root / "models" / "zoo" / "profiles" / "v=2.json")
    assert path == profile_path(str(version), "profile.json")
    assert not (version / "profile.json").exists()
    assert reference_of(str(version)).counts.rows == 300


def test_the_command_prints_one_object_and_ends_with_1_on_an_alarm(place, capsys):
    from howdah import cli
    from howdah.cli import app

    write_scored(place, "db.cli", "ds=1", texts(place, 150, 1))
    write_scored(place, "db.cli", "ds=2", texts(place, 20, 1))

    def call(*arguments: str) -> tuple[int, dict]:
        code = cli.run(
            lambda: app(["drift", "--model", place.run, *arguments], standalone_mode=False) or 0,
            as_json=True,
        )
        return code, json.loads(capsys.readouterr().out)

    table = ("--table", "db.cli", "--json", "--config", place.path)
    code, answer = call(*table, "--partition", "ds=1", "--output", str(place.root / "cli"))
    assert (code, answer["error"]) == (1, "CheckFailed")
    assert "length" in [problem["where"] for problem in answer["problems"]]
    assert ">Model card</a>" in (place.root / "cli" / "drift.html").read_text()
    code, answer = call(*table, "--partition", "ds=2")
    assert (code, answer["state"], answer["alarms"]) == (0, "too few rows", [])
    for wrong in (
        ("--table", "t"), ("--source", "f", "--partition", "ds=1"), (), ("--source", "f", "--last",
        "3"), ("--source", "f", "--make-reference"),
    ):  # fmt: skip
        code, answer = call(*wrong, "--json")
        assert (code, answer["error"]) == (2, "UsageError"), wrong


def test_labels_and_tokens_are_escaped_on_the_page(place):
    from howdah.serving.drift.findings import Findings, Point
    from howdah.serving.drift.judge import judge
    from howdah.serving.drift.page import render
    from tests.serving.drift import samples

    evil = '</style><script>alert("x")</script>'
    reference = samples.reference(labels=(evil, "b", "c"))
    reference.add(*samples.rows(1, 400))
    current = Profile.like(reference)
    current.add(*samples.rows(2, 300))
    verdict = judge(reference, current)
    points = [Point(name=f"ds={evil}", version=n, verdict=verdict) for n in (1, 2)]
    findings = Findings(
        model=evil, directory=evil, version=1, run_id=evil, what=evil, reference=reference,
        current=current, verdict=verdict, limits=place.config.drift, points=points,
    )  # fmt: skip
    page = render(findings, dict.fromkeys(range(60), evil))
    assert page.count("<script") == 1  # the pages' own
    assert page.count("</style>") == 1
    assert "&lt;script&gt;" in page


@pytest.mark.full
def test_a_real_models_partitions_of_the_same_source_do_not_alarm(place):
    """1,000 partitions of 200 rows, scored by the model, beside the profile of its export."""
    from howdah.serving.drift.judge import judge
    from tests.fixtures.dataset import learnable_rows

    ids_N, _ = learnable_rows(5000, 4, place.served.encoder.vocab_size, seed=77)
    scores_NC = place.served.scores_of_ids(ids_N)
    reference = reference_of(storage.join(place.run, "export"))
    random = np.random.default_rng(0)
    alarmed = 0
    for _ in range(1000):
        drawn = random.choice(5000, 200, replace=False)
        profile = Profile.like(reference)
        profile.add(scores_NC[drawn], [ids_N[row] for row in drawn])
        alarmed += bool(judge(reference, profile).alarms)
    assert alarmed < 10
    cut = Profile.like(reference)
    short = [ids[:8] for ids in ids_N[:300]]
    cut.add(place.served.scores_of_ids(short), short)
    assert "length" in [column.name for column in judge(reference, cut).alarms]
