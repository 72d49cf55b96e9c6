"""The run configuration: every error at once, nearest key named, overrides, round trip, help."""

import datetime
import io
import sys

import pytest
import yaml

from howdah import storage
from howdah.config import loader, yaml_text
from howdah.config.model import Config
from howdah.config.options import partition
from howdah.config.types import named_by, parse_bytes
from howdah.errors import ConfigError, UsageError


def load_text(tmp_path, text: str, overrides=()):
    path = str(tmp_path / "run.yaml")
    storage.write_whole(path, text.encode())
    return loader.load(path, overrides)


def problems(tmp_path, text: str) -> dict[str, object]:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    return {problem.where: problem for problem in caught.value.problems}


def test_every_problem_at_once_with_the_nearest_key(tmp_path):
    messages = problems(
        tmp_path,
        """
training: {learning_rat: 5e-5, global_batch_size: many}
model: {lerning_rate: 1}
data: {shard_bytes: 64 MB, max_length: 4}
traning: {}
""",
    )
    assert set(messages) == {
        "training.learning_rat", "training.global_batch_size", "model.lerning_rate",
        "data.shard_bytes", "data.max_length", "traning",
    }  # fmt: skip
    assert messages["training.learning_rat"].remedy == "did you mean training.learning_rate?"
    assert messages["model.lerning_rate"].remedy == "did you mean training.learning_rate?"
    assert messages["traning"].remedy == "did you mean training?"
    assert "MiB" in messages["data.shard_bytes"].what
    assert messages["training.global_batch_size"].got == "'many'"


@pytest.mark.parametrize(
    ("text", "where", "remedy"),
    [
        ("x-defaults: {a: 1}", "x-defaults", ""),
        ("data: {max-length: 64}", "data.max-length", "did you mean data.max_length?"),
        ("training: {str: 1}", "training.str", ""),
        ("model: {a b: 1}", "model.a b", ""),
        ("data: {task: [multi_label]}", "data.task", ""),
    ],
)
def test_an_unknown_key_is_named_however_it_is_spelt(tmp_path, text, where, remedy):
    messages = problems(tmp_path, text)
    assert list(messages) == [where] and remedy in (messages[where].remedy or "")


def test_a_value_of_no_fitting_type_is_one_problem(tmp_path):
    messages = problems(tmp_path, "data: {labels: 3}")
    assert list(messages) == ["data.labels"]
    assert "list" in messages["data.labels"].expected and "dict" in messages["data.labels"].expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("training: {gradient_checkpointing: true}", "torch only"),
        ("training: {comm: torch}", "works with training.framework torch only"),
        (
            "training: {framework: torch, parallel: {shard: optimizer},"
            " gradient_compression: bf16}",
            "is for whole gradients",
        ),
        (
            "training: {framework: torch, parallel: {shard: full}, gradient_compression: auto}",
            "is for whole gradients",
        ),
        ("training: {parallel: {shard: optimizer}}", "works with training.framework torch only"),
        (
            "training: {framework: torch, parallel: {shard: optimizer}}\njob: {min_workers: 1}",
            "not for elastic jobs",
        ),
        (
            "training: {framework: torch, parallel: {shard: full}}\njob: {min_workers: 1}",
            "not for elastic jobs",
        ),
        ("training: {framework: torch, parallel: {shard: both}}", "not what the key takes"),
        ("training: {per_device_max_tokens: 128}\ndata: {max_length: 256}", "must hold one row"),
        ("data: {split: {validation: 0.6, test: 0.5}}", "below 1"),
        ("checkpoint: {keep: 1}", "not what the key takes"),
        ("run: {name: 'a b'}", "not what the key takes"),
    ],
)
def test_refused_combinations(tmp_path, text, what):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    assert what in str(caught.value)
    assert caught.value.exit_code == 2


def test_scientific_numbers_are_numbers(tmp_path):
    loaded = load_text(tmp_path, "training: {learning_rate: 3e-5, weight_decay: 1E-6}")
    assert loaded.training.learning_rate == 3e-5
    assert loaded.training.weight_decay == 1e-6


def test_duplicate_key_and_bad_yaml_name_the_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "training:\n  seed: 1\n  seed: 2\n")
    assert "twice" in caught.value.got and "line 3" in caught.value.where
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "training: {seed: [}")
    assert "line 1" in caught.value.where


@pytest.mark.parametrize(
    ("value", "got", "remedy"),
    [
        ("{{ ds }}", "a key is itself a mapping", "{{ ... }}"),
        ("{? [a] : b}", "a key is itself a mapping", "quotes"),
        ("2026-13-45", "YAML's timestamp", "quotes"),
        ("!!timestamp x", "YAML's timestamp", "quotes"),
        ("9" * 5000, "YAML's int", "quotes"),
        ("!!int abc", "YAML's int", "quotes"),
        ("0x_", "YAML's int", "quotes"),
        ("!!bool x", "YAML's bool", "quotes"),
        ('"\\UFFFFFFFF"', "out of range", "fix that line"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_refused_with_its_line(tmp_path, value, got, remedy):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"run:\n  name: a\ndata:\n  source: {value}\n")
    assert got in caught.value.got and remedy in caught.value.remedy
    assert caught.value.where.endswith("run.yaml, line 4")
    with pytest.raises(ConfigError) as caught:
        loader.load(None, [f"training.seed={value}"])
    assert got in caught.value.got and caught.value.where.startswith("--set training.seed=")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.source=/a/b #2", "/a/b #2"),
        ("data.source=2026-13-45", "2026-13-45"),
        ("data.source=!!bool x", "!!bool x"),
        ("data.source=/a: b", "/a: b"),
        ("data.source='/a b'", "/a b"),
        ('data.source="/a b"', "/a b"),
        ("data.columns.separator= | ", " | "),
        ("data.columns.separator=>", ">"),
        ("run.name=123", "123"),
        ("run.user=null", None),
        ("run.user=", None),
        ("job.env.PASS=007", "007"),
        ("training.seed=7", 7),
    ],
)
def test_a_text_for_a_key_of_texts_stays_as_it_is_typed(override, value):
    part_of_config = loader.load(None, [override]).model_dump()
    *parts, last = override.partition("=")[0].split(".")
    for part in parts:
        part_of_config = part_of_config[part]
    assert part_of_config[last] == value


@pytest.mark.parametrize("typed", ["|", ">", "\\t", "\t", "#"])
def test_a_separator_reaches_the_fields_own_check(typed):
    """YAML reads `|` as an empty block: the check of one character never saw it."""
    raw = {}
    loader._apply(raw, f"data.csv.delimiter={typed}")
    assert raw == {"data": {"csv": {"delimiter": typed}}}


def test_a_template_that_was_not_filled_in_is_refused():
    with pytest.raises(ConfigError, match="key is itself a mapping"):
        loader.load(None, ["data.source={{ ds }}"])


def test_aliases_that_stand_for_millions_of_values_are_refused_at_once(tmp_path):
    """450 bytes of YAML were 10^8 values, which the check of the sections walked one by one."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefg", "bcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    with pytest.raises(ConfigError, match="aliases") as caught:
        load_text(tmp_path, "\n".join(lines))
    assert "line" in caught.value.where
    with pytest.raises(ConfigError, match="a node that contains it"):
        load_text(tmp_path, "run: &a {name: *a}")
    many = load_text(tmp_path, "data: {split: &s {seed: 7}}\ntraining: {seed: 7}\n")
    assert many.training.seed == 7


def test_brackets_too_deep_for_the_stack_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="not YAML") as caught:
        load_text(tmp_path, "data: " + "[" * 3000 + "]" * 3000)
    assert "within each other" in caught.value.got


def test_mappings_are_merged_as_in_other_yaml(tmp_path):
    text = """
data: {dataset: /d, max_length: 64, split: &split {<<: &seeds {seed: 7, test: 0.3}, test: 0.2}}
tune: {<<: [{trials: 3}, {trials: 5, parallel: 9}]}
training:
  <<: {seed: 1, logging_steps: 5}
  seed: 2
"""
    config = load_text(tmp_path, text)
    assert (config.data.split.seed, config.data.split.test) == (7, 0.2)
    assert (config.tune.trials, config.tune.parallel) == (3, 9)
    assert (config.training.seed, config.training.logging_steps) == (2, 5)
    # A mapping that is merged before it is built itself still overrides what it has merged.
    early = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\n<<: *b\nc: {<<: *b}\n"
    assert yaml_text.parse(early, "here") == {"x": 2, "a": {"x": 1}, "b": {"x": 2}, "c": {"x": 2}}
    for twice in ("{<<: {seed: 1}, seed: 2, seed: 3}", "{<<: {a: 1}, <<: {b: 2}}"):
        with pytest.raises(ConfigError) as caught:
            load_text(tmp_path, f"training: {twice}")
        assert "is given twice" in caught.value.got


@pytest.mark.parametrize(
    ("raw", "remedy"),
    [
        ("run: {name: é}".encode("latin-1"), "iconv -f ISO-8859-1"),
        ("run: {name: a}".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("run: {name: a}".encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
        (b"\x80\x00\x01", "-t UTF-8"),
    ],
)
def test_what_is_not_utf8_is_a_config_error_from_a_file_and_from_stdin(
    tmp_path, monkeypatch, raw, remedy
):
    path = str(tmp_path / "run.yaml")
    storage.write_whole(path, raw)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="ascii"))
    for place in (path, "-"):
        with pytest.raises(ConfigError) as caught:
            loader.load(place)
        assert caught.value.exit_code == 2 and remedy in caught.value.remedy
        assert ("stdin" if place == "-" else path) in caught.value.where


def test_stdin(monkeypatch):
    text = "\N{BYTE ORDER MARK}run: {name: r1}\n"
    for stream in (io.TextIOWrapper(io.BytesIO(text.encode()), "ascii"), io.StringIO(text)):
        monkeypatch.setattr(sys, "stdin", stream)
        assert loader.load("-").run.name == "r1"
        stream.close()
        with pytest.raises(UsageError, match="stdin is closed"):
            loader.load("-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="stdin is closed"):
        loader.load("-")


@pytest.mark.parametrize(
    ("text", "got"), [("- a\n- b\n", "a list"), ("just words", "the text 'just words'")]
)
def test_not_a_mapping(tmp_path, text, got):
    with pytest.raises(ConfigError, match="not a mapping") as caught:
        load_text(tmp_path, text)
    assert caught.value.got == got


def test_empty_file_takes_the_defaults_and_what_is_no_file_is_refused(tmp_path):
    assert load_text(tmp_path, "") == Config()
    for path, got in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(ConfigError, match="there is no such configuration") as caught:
            loader.load(str(path))
        assert caught.value.where == str(path) and got in caught.value.got
        assert "howdah config init" in caught.value.remedy
    with pytest.raises(ConfigError, match="a file of rows is not a configuration") as caught:
        loader.load("messages.csv")
    assert "--source messages.csv`" in caught.value.remedy


def test_overrides(tmp_path):
    loaded = load_text(
        tmp_path,
        "training: {seed: 1}",
        ["training.seed=2", "data.columns.text=[title, body]", "data.shard_bytes=1 MiB"],
    )
    assert loaded.training.seed == 2
    assert loaded.data.columns.text == ["title", "body"]
    assert loaded.data.shard_bytes == 2**20
    for bad in ("training.seed", "=3", "training.seed.deep=1"):
        with pytest.raises(UsageError):
            load_text(tmp_path, "training: {seed: 1}", [bad])


@pytest.mark.parametrize("key", [".", "..", "run..name", "run.", ".name", "run. .name"])
def test_an_override_with_an_empty_part_of_a_key_is_refused(key):
    with pytest.raises(UsageError) as caught:
        loader.load(None, [f"{key}=x"])
    assert caught.value.got == f"an empty part in the key {key!r}"
    assert loader.load(None, [" run . name = x"]).run.name == "x"


def test_no_path_is_empty_or_holds_nul():
    """ "" would be the root to one command and the working directory to another."""
    kinds = {"path", "source", "query", "model", "checkpoint"}
    paths = {key: field for key, field in loader.keys() if named_by(field) in kinds}  # noqa: SIM118
    assert {"run.directory", "data.dataset", "model.base", "yarn.files"} <= set(paths)
    for key, field in paths.items():
        for bad in ("", " \t", "a\0b"):
            value = [bad] if "list" in loader.type_text(field.annotation) else bad
            with pytest.raises(ConfigError) as caught:
                loader.from_dict(_nested(key, value))
            messages = {problem.where: problem.what for problem in caught.value.problems}
            sentence = "hold the character NUL" if bad.strip() else "be empty"
            assert [what for where, what in messages.items() if where.startswith(key)] == [
                f"it may not {sentence}"
            ]


def _nested(key: str, value: object) -> dict:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def test_dump_reads_back_the_same():
    changed = loader.load(None, ["data.labels={'1': World}", "training.class_weights=balanced"])
    assert loader.from_dict(yaml.safe_load(loader.dump_yaml(changed))) == changed


def test_every_key_has_help_and_a_type():
    for key, field in loader.keys():  # noqa: SIM118 - a function, not a mapping
        assert field.description, key
        [*_, item] = [i for i in loader.explain(key) if i["key"] == key]
        assert item["type"] and "Annotated" not in item["type"], item


def test_explain_names_the_nearest():
    seeds = ["data.split.seed", "training.seed"]
    assert [i["key"] for i in loader.explain("seed")] == seeds
    with pytest.raises(UsageError) as caught:
        loader.explain("learning_rat")
    assert "training.learning_rate" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "key"),
    [("lr", "training.learning_rate"), ("epochs", "training.num_train_epochs"), ("sed", "seed")],
)
def test_a_short_name_without_a_section_is_understood(name, key):
    with pytest.raises(UsageError) as explained:
        loader.explain(name)
    with pytest.raises(ConfigError) as loaded:
        loader.load(None, [f"{name}=3"])
    for remedy in (explained.value.remedy, loaded.value.problems[0].remedy):
        assert remedy.startswith("did you mean") and remedy.endswith(f"{key}?")


def test_starter_is_a_valid_configuration(tmp_path):
    assert load_text(tmp_path, loader.starter_yaml()) == Config()


@pytest.mark.parametrize(
    ("text", "size"), [("64 MiB", 64 * 2**20), ("1.5GiB", 3 * 2**29), ("10", 10), (7, 7)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


def test_without_a_file_the_problems_are_those_of_set():
    with pytest.raises(ConfigError, match="1 problem in --set"):
        loader.load(None, ["training.seed=x"])


@pytest.mark.parametrize("text", ["inf GiB", "1e999 GiB", "nan GiB", "GiB", "²"])
def test_a_size_without_a_number_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        loader.load(None, [f"training.shard_cache_bytes={text}"])
    (problem,) = caught.value.problems
    assert "a size needs a number and a unit" in problem.what


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.columns.text=[]", "at least 1 item"),
        ("data.labels=[]", "labels is empty"),
        ("training.num_train_epochs=inf", "finite number"),
        ("training.weight_decay=inf", "finite number"),
    ],
)
def test_what_no_run_can_use_is_refused(override, problem):
    with pytest.raises(ConfigError) as caught:
        loader.load(None, [override])
    (only,) = caught.value.problems
    assert problem in f"{only.what} {only.expected}"
    assert only.where == override.partition("=")[0]


def test_the_values_of_partitions_are_texts():
    data = {"format": "hive", "source": "db.table"}
    values = {"day": [datetime.date(2026, 1, 1), "b"], "hour": 5}
    config = loader.from_dict({"data": {**data, "partitions": values}})
    assert config.data.partitions == {"day": ["2026-01-01", "b"], "hour": ["5"]}
    for value in (None, True, [None]):
        with pytest.raises(ConfigError) as caught:
            loader.from_dict({"data": {**data, "partitions": {"day": value}}})
        assert "valid string" in caught.value.problems[0].expected


def test_decimals_of_38_digits_are_compared_exactly():
    values = ["1" * 37 + last for last in "12"]
    assert [partition.canonical(value, "decimal(38,0)") for value in values] == values


@pytest.mark.parametrize(
    "odd", ["\x7f", "\x80", "\x85", "\x9f", "\u2028", "\ufeff", "\udce9", "\U0001f600"]
)
def test_a_line_to_paste_reads_back_the_same(odd):
    value = {"labels": {f"a{odd}b": f"{odd}: #"}}
    text = yaml_text.flow(value)
    assert yaml_text.parse(text, "here") == value
    assert len(text.splitlines()) == 1


# ------------------------------------------------------------------------ what must fit together
@pytest.mark.parametrize("key", ["workers", "max_workers"])
def test_more_workers_than_rows_of_a_global_batch_are_refused(key):
    job = {"min_workers": 1, key: 8}
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"training": {"global_batch_size": 4}, "job": job})
    assert f"job.{key} (8) must not exceed training.global_batch_size (4)" in str(caught.value)
    loader.from_dict({"training": {"global_batch_size": 8}, "job": job})


def test_a_batch_of_one_row_needs_no_section_of_a_job():
    alone = loader.from_dict({"training": {"global_batch_size": 1}})
    assert loader.from_dict(yaml.safe_load(loader.dump_yaml(alone))) == alone
    with pytest.raises(ConfigError, match="1 problem"):
        loader.from_dict({"training": {"global_batch_size": 1}, "yarn": {"queue": "research"}})


def test_a_key_that_yaml_takes_for_true_is_a_key(tmp_path):
    text = "job: {on: local}\ndata: {labels: {yes: Good, no: Bad}}\n"
    held = load_text(tmp_path, text)
    assert (held.job.on, held.data.labels) == ("local", {"yes": "Good", "no": "Bad"})
    assert load_text(tmp_path, loader.dump_yaml(held)) == held
    with pytest.raises(ConfigError, match="given twice"):
        load_text(tmp_path, "job: {on: local, 'on': ray}")


def test_gloo_times_out_before_a_rank_counts_as_hanging():
    assert loader.from_dict({}).job.gloo_timeout == 30.0
    for hang, gloo in ((5, 5.0), (12, 10.0), (90, 60.0)):
        assert loader.from_dict({"job": {"hang_seconds": hang}}).job.gloo_timeout == gloo


def test_a_worker_has_one_gpu_or_none():
    for count in (0, 1):
        assert loader.from_dict({"job": {"worker": {"gpus": count}}}).job.worker.gpus == count
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"job": {"worker": {"gpus": 2}}})
    text = str(caught.value)
    assert "job.worker.gpus" in text
    assert "one GPU" in text
    assert "job.workers" in text
