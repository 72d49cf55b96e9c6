"""What a loop is given, and what it is refused before its first step."""

from __future__ import annotations

import importlib.util
import io
import shutil
from dataclasses import replace

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import ConfigError, DataError, ModelError, UsageError
from howdah.process.devices import CPU, Device
from howdah.process.env import RankEnv
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import SoloComm
from howdah.training.optim.loss_scale import LossScale, clip_factor
from howdah.training.preparation.job import TrainingJob, prepare
from howdah.training.run.run import Run
from tests.fixtures.dataset import build_dataset
from tests.support.models.tiny_model import write_tiny_model

AMPERE = Device("GPU", "NVIDIA A100-SXM4-40GB", (8, 0))
VOLTA = Device("GPU", "Tesla V100-SXM2-16GB", (7, 0))


class OneOf(SoloComm):
    """Rank `rank` of `size`, for what needs no other rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def broadcast_json(self, obj, *, root=0):
        return obj


def job(dataset, base, comm=None, *, device=CPU, console=None, **sections) -> TrainingJob:
    training = {"framework": "torch", "per_device_max_tokens": 512} | sections.pop("training", {})
    config = from_dict(
        {
            "data": {"dataset": dataset, "max_length": 64},
            "model": {"base": base} | sections.pop("model", {}),
            "training": training,
            **sections,
        }
    )
    run = Run(config, RankEnv(), console=console or io.StringIO())
    return prepare(config, comm or SoloComm(), run, device=device)


# --------------------------------------------------------------------------------- what is given
def begun(job) -> TrainState:
    """The state at the first step."""
    state = TrainState()
    state.moved(job.planner, 0, 0)
    return state


def test_batches_of_random_rows_are_another_plan(tiny_dataset, tiny_model_dir):
    like, random = (
        job(tiny_dataset.path, tiny_model_dir, training={"length_window": window}).planner
        for window in (50, 1)
    )
    assert random.spec.window_batches == 1
    assert random.plan_hash != like.plan_hash


def test_a_job_has_all_that_a_loop_needs(tiny_dataset, tiny_model_dir):
    got = job(tiny_dataset.path, tiny_model_dir, training={"num_train_epochs": 2.0,
                                                           "global_batch_size": 16})  # fmt: skip
    assert got.labels == tiny_dataset.manifest.labels
    assert got.schedule.steps == 2 * got.planner.steps_per_epoch == 12
    assert got.weights["classifier.weight"].shape == (4, got.base.config["dim"])
    assert np.ptp(got.weights["classifier.weight"]) > 0
    assert got.class_weights is None
    assert got.identity.plan == got.planner.plan_hash
    assert got.planner.spec.window_batches == 50
    rows = [b.real_tokens for b in got.train_source(SoloComm(), begun(got))]
    assert sum(rows) == 2 * sum(shard.tokens for shard in tiny_dataset.manifest.splits["train"])


def test_a_format_that_cannot_be_written_is_refused_before_the_first_step(
    tiny_dataset, tiny_model_dir, monkeypatch
):
    find = importlib.util.find_spec
    gone = ("onnxruntime", "tensorflow")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in gone else find(name, *a)
    )
    assert job(tiny_dataset.path, tiny_model_dir, export={"formats": ["hf"]}).labels
    with pytest.raises(UsageError, match="cannot be written here") as caught:
        job(tiny_dataset.path, tiny_model_dir, export={"formats": ["onnx-w8", "savedmodel"]})
    assert caught.value.where == "export.formats"
    assert "onnx-w8: onnxruntime not" in caught.value.got
    assert "savedmodel: tensorflow not" in caught.value.got


def test_a_shard_that_no_manifest_lists_is_named_and_left_alone(tmp_path, tiny_model_dir):
    dataset = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir)
    (tmp_path / "v=1" / "train-00007-of-00003.tfrecord").write_bytes(b"junk")
    console = io.StringIO()
    got = job(dataset.path, tiny_model_dir, console=console)
    (tmp_path / "v=1" / f"{dataset.manifest.splits['train'][0].name}.ids").write_bytes(
        b"of its rows"
    )
    console = io.StringIO()
    job(dataset.path, tiny_model_dir, console=console)
    assert console.getvalue().count("the manifest does not list") == 1
    assert "train-00007-of-00003.tfrecord" in console.getvalue()
    assert got.planner.rows == dataset.manifest.rows("train")


def test_the_classifier_begins_by_the_seed_alone(tiny_dataset, tiny_model_dir):
    first, again, other = (
        job(tiny_dataset.path, tiny_model_dir, training={"seed": seed}).weights["classifier.weight"]
        for seed in (1, 1, 2)
    )
    assert first.tobytes() == again.tobytes()
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_evaluation_sees_each_row_once_in_any_world(tiny_dataset, tiny_model_dir, world, split):
    got = job(tiny_dataset.path, tiny_model_dir)
    ids = [
        row_id
        for rank in range(world)
        for batch in got.eval_source(split, OneOf(rank, world))
        for row_id, weight in zip(batch.row_ids, batch.weights_B, strict=True)
        if weight
    ]
    rows = tiny_dataset.manifest.rows(split)
    assert sorted(ids) == sorted(f"{split}-{i}".encode() for i in range(rows))


def test_a_split_is_opened_once_for_all_evaluations(tiny_dataset, tiny_model_dir, monkeypatch):
    got = job(tiny_dataset.path, tiny_model_dir)
    listed = []
    real = storage.list_dir
    monkeypatch.setattr(
        storage, "list_dir", lambda path, **more: (listed.append(path), real(path, **more))[1]
    )
    seen = []
    for max_rows in (None, 6, None):
        source = got.eval_source("validation", SoloComm(), max_rows)
        seen.append(sum(int(batch.weights_B.sum()) for batch in source))
    rows = tiny_dataset.manifest.rows("validation")
    assert seen == [rows, 6, rows]
    assert not listed
    train = got.eval_source("train", SoloComm())
    assert train.shards is not got.shards  # which training reads at the same time
    assert got.eval_source("train", SoloComm()).shards is train.shards


def test_between_evaluations_no_shard_is_held_in_the_cache(tmp_path, tiny_model_dir):
    place = f"memory://{tmp_path.name}-evaluated/v=1"
    remote = build_dataset(place, model_dir=tiny_model_dir)
    got = job(remote.path, tiny_model_dir,
              training={"shard_cache_directory": str(tmp_path / "cache")})  # fmt: skip

    def held() -> int:
        return sum(mapped is not None for mapped in got.evaluated["validation"]._maps)

    source = got.eval_source("validation", SoloComm())
    assert sum(int(batch.weights_B.sum()) for batch in source) > 0
    assert held() == 0
    batches = iter(got.eval_source("validation", SoloComm()))
    next(batches)
    batches.close()  # a rank is lost in the middle of an evaluation, or a stop is asked for
    assert held() == 0
    ids = [b.row_ids for b in got.eval_source("validation", SoloComm(), row_ids=True)]
    assert sum(map(len, ids)) >= remote.manifest.rows("validation")
    assert held() == 0
    storage.remove(storage.parent(place), recursive=True)


def test_a_width_is_never_beyond_the_model_s_positions(tiny_dataset, tiny_model_dir):
    longest = max(int(part.max()) for part in job(tiny_dataset.path, tiny_model_dir).shards.lengths)
    assert longest % 8 != 0
    got = job(tiny_dataset.path, tiny_model_dir, device=AMPERE)
    got.base.config["max_position_embeddings"] = longest
    for source in (got.train_source(SoloComm(), begun(got)),
                   got.eval_source("train", SoloComm())):  # fmt: skip
        widths = [batch.ids_BT.shape[1] for batch in source]
        assert max(widths) == longest


def test_a_short_evaluation_takes_rows_of_every_shard(tiny_dataset, tiny_model_dir):
    got = job(tiny_dataset.path, tiny_model_dir)
    batches = list(got.eval_source("train", SoloComm(), max_rows=12))
    shards = np.concatenate([b.rows.shard[b.rows.real] for b in batches])
    assert np.bincount(shards).tolist() == [4, 4, 4]


def test_balanced_weights_give_every_class_the_same_say(tiny_dataset, tiny_model_dir):
    got = job(tiny_dataset.path, tiny_model_dir, training={"class_weights": "balanced"})
    labels = np.concatenate(got.shards.labels)
    say = np.bincount(labels, minlength=4) * got.class_weights
    np.testing.assert_allclose(say, len(labels) / 4, rtol=1e-6)


def test_given_weights_go_by_the_labels_names(tiny_dataset, tiny_model_dir):
    got = job(tiny_dataset.path, tiny_model_dir, training={"class_weights": {"plants": 3.0}})
    assert got.class_weights.tolist() == [1.0, 3.0, 1.0, 1.0]


@pytest.mark.parametrize(("size", "sparse"), [(2, True), (64, False)])
def test_embeddings_cross_sparse_where_that_is_less(tmp_path, tiny_dataset, tiny_model_dir, size,
                                                   sparse):  # fmt: skip
    # 2 ranks touch some 2 * 60 rows of 2 * 900; 64 ranks with a batch of 640 are beyond that.
    many = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows={"train": 2560})
    got = job(many.path, tiny_model_dir, OneOfAlike(0, size),
              training={"global_batch_size": 8 if sparse else 2560})  # fmt: skip
    assert got.sparse_embeddings is sparse


class OneOfAlike(OneOf):
    """Rank 0 of a world whose other ranks say the same."""

    def gather_json(self, obj):
        return [obj] * self.size

    def broadcast(self, arrays, *, root=0):
        return dict(arrays)


# ----------------------------------------------------------------------------------- precision
class Among(OneOfAlike):
    """Rank 0 of a world whose other ranks have these precisions, and those of a world before."""

    def __init__(self, *others: tuple[str, str | None]) -> None:
        super().__init__(0, 1 + len(others))
        self.others = others

    def gather_json(self, obj):
        return [obj, *self.others] if isinstance(obj, list) else super().gather_json(obj)


@pytest.fixture(params=[True, False])
def gains(request, monkeypatch) -> bool:
    """Make this machine's processor one that gains by bf16, or one that does not."""
    monkeypatch.setattr(
        "howdah.training.preparation.precision.cpu_gains_by_bf16", lambda: request.param
    )
    return request.param


def test_bf16_is_taken_where_every_rank_gains_by_it(tiny_dataset, tiny_model_dir, gains):
    console = io.StringIO()
    others = ("bf16", None), ("fp32", None), ("bf16", None)
    got = job(tiny_dataset.path, tiny_model_dir, Among(*others), console=console)
    assert (got.precision, got.pad_multiple) == ("fp32", 2)
    assert f"of ranks {'2' if gains else '0, 2'}; training.precision: bf16" in console.getvalue()
    alike = ("bf16" if gains else "fp32", None)
    assert job(tiny_dataset.path, tiny_model_dir, Among(alike)).precision == alike[0]
    ranks = Among(("bf16", None))
    training = {"precision": "bf16"}
    assert job(tiny_dataset.path, tiny_model_dir, ranks, training=training).precision == "bf16"


@pytest.mark.parametrize("settled", ["bf16", "fp32"])
def test_a_precision_that_was_settled_stays(tiny_dataset, tiny_model_dir, gains, settled):
    # A world after one that was lost with all its memory: models have been built already.
    got = job(tiny_dataset.path, tiny_model_dir, Among(("fp32", settled), ("bf16", None)))
    assert got.precision == settled
    # A world that goes on from rank 1's memory, which this rank joins.
    facts = replace(got, precision=settled).facts()

    class Holder(OneOfAlike):
        def broadcast_json(self, obj, *, root=0):
            return facts if root == 1 else obj

    config, run = got.config, Run(got.config, RankEnv(), console=io.StringIO())
    joined = prepare(config, Holder(0, 2), run, device=CPU, holder=1)
    assert (joined.precision, joined.pad_multiple) == (settled, 4 if settled == "bf16" else 2)


@pytest.mark.parametrize(
    ("framework", "precision", "emulates", "warns"),
    [
        ("torch", "bf16", True, True),
        ("torch", "bf16", False, False),
        ("torch", "fp32", True, False),
        ("tensorflow", "bf16", True, False),
    ],
)
def test_processors_without_bf16_are_named(
    monkeypatch, tiny_dataset, tiny_model_dir, framework, precision, emulates, warns
):
    monkeypatch.setattr("howdah.training.preparation.precision.cpu_emulates_bf16", lambda: emulates)
    console = io.StringIO()
    job(tiny_dataset.path, tiny_model_dir, Among((precision, None)), console=console,
        training={"framework": framework, "precision": precision})  # fmt: skip
    assert ("ranks 0, 1 have no instructions for bf16" in console.getvalue()) == warns


@pytest.mark.parametrize(
    ("device", "precision", "width"),
    [(AMPERE, "bf16", 8), (VOLTA, "fp32", 8), (Device("GPU"), "fp32", 8)],
)
def test_auto_is_bf16_on_gpus_of_capability_8(
    monkeypatch, tiny_dataset, tiny_model_dir, device, precision, width
):
    # Described devices: no GPU is needed, nor was one at hand.
    monkeypatch.setattr("howdah.training.preparation.precision.cpu_gains_by_bf16", lambda: True)
    got = job(tiny_dataset.path, tiny_model_dir, device=device)
    assert (got.precision, got.pad_multiple) == (precision, width)


def test_gpus_of_different_generations_train_in_fp32_and_are_called_gpus(
    tiny_dataset, tiny_model_dir
):
    console = io.StringIO()
    others = ("fp32", None), ("bf16", None)
    got = job(tiny_dataset.path, tiny_model_dir, Among(*others), console=console, device=AMPERE)
    assert got.precision == "fp32"
    assert "bf16 is not faster on the GPUs of ranks 1;" in console.getvalue()
    training = {"precision": "bf16"}
    job(tiny_dataset.path, tiny_model_dir, Among(("bf16", None)), console=console,
        device=VOLTA, training=training)  # fmt: skip
    assert "the GPUs of ranks 0, 1 have no units for bf16" in console.getvalue()
    assert "compute capability 7.0" in console.getvalue()


# ------------------------------------------------------------------------------- what is refused
def test_gpus_on_some_ranks_alone_are_refused(tiny_dataset, tiny_model_dir):
    class Mixed(OneOfAlike):
        def gather_json(self, obj):
            if not isinstance(obj, dict):
                return super().gather_json(obj)
            return [obj | {"device": kind} for kind in ("GPU", "CPU", "GPU", "CPU")]

    with pytest.raises(ConfigError, match="some ranks train on a GPU") as caught:
        job(tiny_dataset.path, tiny_model_dir, Mixed(0, 4), device=AMPERE)
    assert caught.value.where == "ranks without a GPU: 1, 3"
    assert "ranks with a GPU: 0, 2" in caught.value.got


def test_fp16_is_for_gpus(tiny_dataset, tiny_model_dir):
    training = {"precision": "fp16"}
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        job(tiny_dataset.path, tiny_model_dir, training=training)
    assert (
        job(tiny_dataset.path, tiny_model_dir, training=training, device=AMPERE).precision == "fp16"
    )


def test_another_tokenizer_is_refused(tmp_path, tiny_dataset, tiny_model_dir):
    other = str(tmp_path / "other")
    shutil.copytree(tiny_model_dir, other)
    path = storage.join(other, "tokenizer.json")
    text = storage.read_text(path)
    assert '"the"' in text
    storage.write_whole(path, text.replace('"the"', '"thee"').encode())
    with pytest.raises(ModelError, match="tokenizer is not the dataset's"):
        job(tiny_dataset.path, other)


def test_rows_longer_than_the_base_can_read_are_refused(tmp_path, tiny_dataset, tiny_model_dir):
    long = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, max_length=4096,
                         rows={"train": 20})  # fmt: skip
    with pytest.raises(ModelError, match="longer than the base model can read"):
        job(long.path, tiny_model_dir, training={"per_device_max_tokens": 8192})


def test_a_micro_batch_must_hold_a_row(tmp_path, tiny_model_dir):
    long = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, max_length=129,
                         rows={"train": 20})  # fmt: skip
    with pytest.raises(ConfigError, match="cannot hold one row"):
        job(long.path, tiny_model_dir, training={"per_device_max_tokens": 129})


def test_freezing_more_layers_than_there_are_is_refused(tiny_dataset, tiny_model_dir):
    with pytest.raises(ConfigError, match="layers"):
        job(tiny_dataset.path, tiny_model_dir, model={"freeze_layers": 3})


@pytest.mark.parametrize("weights", [{"animal": 2.0}, {"plants": 0.0}, {"plants": -1.0}])
def test_class_weights_must_fit_the_labels(tiny_dataset, tiny_model_dir, weights):
    with pytest.raises(ConfigError, match="class weights do not fit") as caught:
        job(tiny_dataset.path, tiny_model_dir, training={"class_weights": weights})
    assert next(iter(weights)) in caught.value.got


def test_more_ranks_than_rows_are_refused(tmp_path, tiny_model_dir, tiny_dataset):
    few = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows={"train": 3})
    with pytest.raises(DataError, match="fewer training rows than ranks"):
        job(few.path, tiny_model_dir, OneOfAlike(0, 4))
    with pytest.raises(ConfigError, match="more ranks than rows in a global batch"):
        job(tiny_dataset.path, tiny_model_dir, OneOfAlike(0, 4),
            training={"global_batch_size": 3})  # fmt: skip


def test_ranks_with_different_configurations_are_refused(tiny_dataset, tiny_model_dir):
    class Differs(OneOf):
        def gather_json(self, obj):
            return [obj, obj, obj | {"config": "another"}]

    with pytest.raises(ConfigError, match="different configurations") as caught:
        job(tiny_dataset.path, tiny_model_dir, Differs(0, 3))
    assert "ranks 2" in caught.value.where


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_damaged_shard_is_refused_whichever_split_it_is_of(tmp_path, tiny_model_dir, split):
    made = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir)
    path = made.shard_path(made.manifest.splits[split][-1])
    data = bytearray(storage.read_bytes(path))
    data[len(data) // 2] ^= 1
    storage.write_whole(path, bytes(data))
    with pytest.raises(DataError) as caught:
        job(made.path, tiny_model_dir)
    assert storage.name(path) in caught.value.where
    assert "offset" in caught.value.where


def test_a_base_without_weights_is_refused(tmp_path, tiny_dataset):
    base = write_tiny_model(str(tmp_path / "base"))
    storage.remove(storage.join(base, "model.safetensors"))
    with pytest.raises(ModelError):
        job(tiny_dataset.path, base)


# -------------------------------------------------------------------------------- small pieces
def test_clipping_takes_the_norm_to_the_bound():
    assert clip_factor(4.0, 1.0) * 4.0 == pytest.approx(1.0, rel=1e-5)
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(1e9, 0.0) == 1.0


def test_the_loss_scale_halves_at_infinity_and_doubles_after_2000_good_steps():
    state = TrainState()
    scale = LossScale(state, on=True)
    assert scale.value == 65536.0
    scale.update(False)
    assert (scale.value, state.skipped_steps) == (32768.0, 1)
    for _ in range(1999):
        scale.update(True)
    assert scale.value == 32768.0
    again = LossScale(TrainState.from_meta(state.to_meta()), on=True)  # after a restart
    again.update(True)
    assert again.value == 65536.0
    for _ in range(40):
        again.update(False)
    assert again.value == 1.0
    assert not again.may_skip  # no smaller scale can help: an infinite gradient is an error
    off = LossScale(TrainState(), on=False)
    assert not off.may_skip
    off.update(False)
    assert off.value == 1.0
