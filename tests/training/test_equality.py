"""What must be equal: worlds of one and two, resumed and uninterrupted, TensorFlow and torch.

Each training is a real launch. The fixed table: TensorFlow under horovodrun (Gloo), torch under
mpirun; the other way round only in `make test-all`.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from howdah import storage
from howdah.models.runs.metrics_log import read_metrics
from tests.runs.training_runs import NO_DROPOUT, Finished, train

pytestmark = pytest.mark.mpi

KIND = {"tensorflow": "horovodrun", "torch": "mpirun"}
OTHER = {"mpirun": "horovodrun", "horovodrun": "mpirun"}
FRAMEWORKS = ("torch", "tensorflow")
STEPS, MIDDLE = 10, 4
# Adding the same number to every key of a head changes no softmax: its true gradient is 0, and what
# Adam makes of rounding errors is noise.
UNDEFINED = "attention.k_lin.bias"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_dataset, tiny_model_dir):
    """Runs of this module by their settings, each launched once."""
    done: dict[tuple, Finished] = {}

    def get(framework: str, np_: int = 1, kind: str | None = None, **settings) -> Finished:
        dropout, env = settings.pop("dropout", True), settings.pop("env", {})
        key = (framework, np_, kind, dropout, *sorted(settings.items()), *sorted(env.items()))
        if key not in done:
            done[key] = train(
                str(tmp_path_factory.mktemp("run")),
                dataset=tiny_dataset.path,
                base=tiny_model_dir,
                framework=framework,
                np_=np_,
                kind=kind or KIND[framework],
                settings=settings | ({} if dropout else NO_DROPOUT),
                env=env,
            )
        return done[key]

    return get


def assert_same_bits(a: Finished, b: Finished, step: int = STEPS) -> None:
    first, second = a.tensors(step), b.tensors(step)
    assert first.keys() == second.keys()
    different = [name for name in first if first[name].tobytes() != second[name].tobytes()]
    assert different == []


def assert_close(a: Finished, b: Finished, *, atol: float, step: int = STEPS) -> None:
    first, second = a.tensors(step), b.tensors(step)
    assert first.keys() == second.keys()
    for name in first:
        if name.startswith("model/") and UNDEFINED not in name:
            np.testing.assert_allclose(first[name], second[name], atol=atol, rtol=0, err_msg=name)


# ----------------------------------------------------------------------------- the world size
FORMS = [
    ("torch", "dense"),
    pytest.param("torch", "sparse", marks=pytest.mark.full),
    ("tensorflow", "sparse"),
    pytest.param("tensorflow", "dense", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("framework", "embeddings"), FORMS)
def test_two_ranks_learn_what_one_does(trained, framework, embeddings):
    """Gradients are sent while the backward pass computes, as between nodes."""
    one = trained(framework, dropout=False)
    settings = {"limit.sparse_embeddings": embeddings, "limit.overlap": True}
    two = trained(framework, 2, dropout=False, **settings)
    assert ("as rows" in two.log()) is (embeddings == "sparse")
    assert len(one.losses()) == len(two.losses()) == STEPS
    np.testing.assert_allclose(two.losses(), one.losses(), atol=1e-5, rtol=0)
    assert one.losses()[0] != one.losses()[-1]
    assert_close(one, two, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("np_", [2, 3])
def test_any_world_learns_what_one_does(trained, framework, np_):
    one = trained(framework, dropout=False)
    more = trained(framework, np_, OTHER[KIND[framework]], dropout=False)
    np.testing.assert_allclose(more.losses(), one.losses(), atol=1e-5, rtol=0)
    assert_close(one, more, atol=2e-5)


# --------------------------------------------------------------------------------- resuming
RESUMED = [
    pytest.param("torch", 1, marks=pytest.mark.full),
    # In every run over torch.distributed: test_a_run_goes_on_over_torch_distributed_bit_by_bit.
    pytest.param("torch", 2, marks=pytest.mark.full),
    ("tensorflow", 1),
    pytest.param("tensorflow", 2, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("framework", "np_"), RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(trained, framework, np_):
    whole = trained(framework, np_)
    resumed = trained(framework, np_, **{"checkpoint.resume": whole.checkpoint(MIDDLE)})
    assert resumed.losses() == whole.losses()[MIDDLE:]
    assert_same_bits(whole, resumed)


@pytest.mark.full
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_three_ranks_resume_bit_by_bit_with_fixed_groups(trained, framework):
    groups = {"limit.fusion_groups": 3}
    whole = trained(framework, 3, **groups)
    resumed = trained(framework, 3, **groups, **{"checkpoint.resume": whole.checkpoint(MIDDLE)})
    assert_same_bits(whole, resumed)


# ------------------------------------------------------------------------------ fewer bytes
def compressed(numbers: str, *, overlap: bool = True) -> dict:
    return {"training.gradient_compression": numbers, "limit.overlap": overlap}


@pytest.mark.parametrize(
    ("framework", "kind", "overlap", "numbers"),
    [
        ("torch", "mpirun", True, "bf16"),
        pytest.param("torch", "torchrun", False, "bf16", marks=pytest.mark.full),
        pytest.param("torch", "torchrun", True, "int8", marks=pytest.mark.full),
        pytest.param("tensorflow", "horovodrun", True, "bf16", marks=pytest.mark.full),
        pytest.param("tensorflow", "horovodrun", True, "int8", marks=pytest.mark.full),
        pytest.param("tensorflow", "mpirun", False, "int8", marks=pytest.mark.full),
    ],
)
def test_compressed_gradients_learn_nearly_the_same(trained, framework, kind, overlap, numbers):
    """No weight is rounded: what differs is what 8 bits leave out of a gradient, or delay."""
    sent = compressed(numbers, overlap=overlap)
    one, two = trained(framework, dropout=False), trained(framework, 2, kind, dropout=False, **sent)
    np.testing.assert_allclose(two.losses(), one.losses(), atol=2e-3, rtol=0)
    assert two.losses() != one.losses()
    first, second = one.tensors(STEPS), two.tensors(STEPS)
    assert first.keys() == second.keys()
    assert all(first[name].dtype == second[name].dtype for name in first)


@pytest.mark.parametrize(
    ("framework", "np_", "kind", "other"),
    [
        ("torch", 2, "torchrun", "mpirun"),
        pytest.param("torch", 3, "torchrun", "torchrun", marks=pytest.mark.full),
        pytest.param("tensorflow", 2, "horovodrun", "mpirun", marks=pytest.mark.full),
    ],
)
def test_int8_goes_on_bit_by_bit_whoever_carries_it(trained, framework, np_, kind, other):
    """A checkpoint follows a step that sends the whole: it has nothing that int8 holds back."""
    whole = trained(framework, np_, kind, **compressed("int8"))
    resume = {"checkpoint.resume": whole.checkpoint(MIDDLE)}
    resumed = trained(framework, np_, other, **compressed("int8", overlap=False), **resume)
    assert resumed.losses() == whole.losses()[MIDDLE:]
    assert_same_bits(whole, resumed)
    assert whole.losses() != trained(framework, np_, kind).losses()
    assert set(whole.tensors(STEPS)) == set(trained(framework, np_, kind).tensors(STEPS))


@pytest.mark.full
@pytest.mark.parametrize(
    ("framework", "kind"), [("torch", "torchrun"), ("tensorflow", "horovodrun")]
)
def test_auto_s_choice_belongs_to_the_run(trained, framework, kind):
    auto = compressed("auto") | {"training.max_steps": 16}
    whole = trained(framework, 2, kind, **auto)
    choice = whole.run_json()["attempts"][-1]["gradient_compression"]
    assert choice["step"] == 11 and set(choice["predicted_seconds"]) == {"none", "bf16", "int8"}
    assert whole.log().count("gradients cross the network in") == 1
    resumed = trained(framework, 2, kind, **auto, **{"checkpoint.resume": whole.checkpoint(12)})
    later = resumed.run_json()["attempts"][-1]["gradient_compression"]
    assert later == {"chosen": choice["chosen"]}
    assert resumed.losses() == whole.losses()[12:]
    assert_same_bits(whole, resumed, 16)


# -------------------------------------------------------------------------- the other carrier
def test_a_run_goes_on_over_torch_distributed_bit_by_bit(trained):
    """Its sums have Horovod's bits, also if they begin in the backward pass, and the run's identity
    does not name the carrier."""
    whole = trained("torch", 2)
    resume = {"checkpoint.resume": whole.checkpoint(MIDDLE)}
    resumed = trained("torch", 2, "torchrun", **resume, **{"limit.overlap": True})
    assert whole.run_json()["attempts"][-1]["comm"] == "horovod (mpi)"
    assert resumed.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"
    assert "2 ranks with torch.distributed (gloo)" in resumed.log()
    assert resumed.losses() == whole.losses()[MIDDLE:]
    assert_same_bits(whole, resumed)


@pytest.mark.full
@pytest.mark.parametrize("embeddings", ["dense", "sparse"])
def test_every_carrier_learns_the_same_bit_by_bit(trained, tmp_path, embeddings):
    rows = {"limit.sparse_embeddings": embeddings}
    one, *others = [trained("torch", 2, kind, **rows) for kind in ("mpirun", "torchrun")]
    store = {"HOWDAH_STORE": str(tmp_path / "ranks")}
    others.append(trained("torch", 2, "mpirun", env=store, **rows, **{"training.comm": "torch"}))
    for other in others:
        assert other.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"
        assert other.losses() == one.losses()
        assert_same_bits(one, other)
    back = {"checkpoint.resume": others[0].checkpoint(MIDDLE)}
    assert_same_bits(one, trained("torch", 2, "mpirun", **rows, **back))


@pytest.mark.full
def test_three_ranks_of_torch_distributed_learn_what_one_does(trained):
    one = trained("torch", dropout=False)
    three = trained("torch", 3, "torchrun", dropout=False)
    np.testing.assert_allclose(three.losses(), one.losses(), atol=1e-5, rtol=0)
    assert_close(one, three, atol=2e-5)


# ------------------------------------------------------- the optimizer divided among the ranks
DIVIDED = {"training.parallel.shard": "optimizer"}
FILES = ("model.safetensors", "optimizer.safetensors")


def assert_same_files(a: Finished, b: Finished, step: int) -> None:
    first, second = (
        storage.read_json(f"{one.checkpoint(step)}/manifest.json")["files"] for one in (a, b)
    )
    assert [first[name]["sha256"] for name in FILES] == [second[name]["sha256"] for name in FILES]


def test_a_divided_optimizer_learns_and_saves_the_same_bit_by_bit(trained):
    """The files are equal too, and the run's identity does not name the division."""
    whole = trained("torch", 2)
    divided = trained("torch", 2, "torchrun", **DIVIDED)
    assert divided.run_json()["attempts"][-1]["parallel"]["shard"] == "optimizer"
    assert divided.losses() == whole.losses()
    for step in (MIDDLE, STEPS):
        assert_same_bits(whole, divided, step)
        assert_same_files(whole, divided, step)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mpirun", "horovodrun", "torchrun"])
@pytest.mark.parametrize("embeddings", ["dense", "sparse"])
def test_a_divided_optimizer_is_the_same_on_every_carrier(trained, kind, embeddings):
    settings = {"limit.sparse_embeddings": embeddings, "training.max_grad_norm": 0.3}
    whole, divided = (
        trained("torch", 2, *k, **settings, **d) for k, d in (((), {}), ((kind,), DIVIDED))
    )
    norms = [line["grad_norm"] for line in read_metrics(whole.directory) if "split" not in line]
    assert max(norms) > 0.3  # clipped
    assert_same_bits(whole, divided)
    assert_same_files(whole, divided, STEPS)


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"), [({}, DIVIDED), (DIVIDED, {}), (DIVIDED, DIVIDED)],
    ids=["whole-divided", "divided-whole", "divided-divided"],
)  # fmt: skip
def test_a_run_goes_on_divided_or_whole_bit_by_bit(trained, first, second):
    begun = trained("torch", 2, "torchrun", **first)
    resume = {"checkpoint.resume": begun.checkpoint(MIDDLE)}
    resumed = trained("torch", 2, "torchrun", **second, **resume)
    assert resumed.losses() == begun.losses()[MIDDLE:]
    assert_same_bits(begun, resumed)


@pytest.mark.full
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 3), (3, 1)])
def test_a_divided_optimizer_goes_on_in_a_world_of_another_size(trained, before, after):
    one = trained("torch", dropout=False)
    begun = trained("torch", before, "torchrun", dropout=False, **DIVIDED)
    resume = {"checkpoint.resume": begun.checkpoint(MIDDLE)}
    resumed = trained("torch", after, "torchrun", dropout=False, **DIVIDED, **resume)
    for run, losses in ((begun, one.losses()), (resumed, one.losses()[MIDDLE:])):
        np.testing.assert_allclose(run.losses(), losses, atol=1e-5, rtol=0)
        assert_close(one, run, atol=2e-5)


@pytest.mark.full
def test_an_earlier_best_step_is_exported_by_a_divided_optimizer_too(trained):
    settings = {"evaluation.every_steps": 1, "evaluation.metric": "accuracy",
                "training.learning_rate": 0.2}  # fmt: skip
    whole, divided = (trained("torch", 2, "torchrun", **settings, **d) for d in ({}, DIVIDED))
    step = whole.run_json()["best_step"]
    assert step == divided.run_json()["best_step"] < STEPS
    assert whole.run_json()["metrics"] == divided.run_json()["metrics"]
    exports = [
        open(os.path.join(run.directory, "export", "model.safetensors"), "rb").read()  # noqa: SIM115
        for run in (whole, divided)
    ]
    assert exports[0] == exports[1]


# ------------------------------------------------------- the parameters divided among the ranks
FULL = {"training.parallel.shard": "full"}


def assert_learns(run: Finished, losses: list[float], whole: Finished) -> None:
    """The losses, and all weights and moments at the end, are those of `whole`."""
    np.testing.assert_allclose(run.losses(), losses, atol=1e-5, rtol=0)
    assert_close(whole, run, atol=2e-5)
    norms = [
        {line["step"]: line["grad_norm"] for line in read_metrics(one.directory) if "lr" in line}
        for one in (whole, run)
    ]
    assert norms[1]
    for step, norm in norms[1].items():
        assert norm == pytest.approx(norms[0][step], rel=1e-4)


def test_a_run_goes_on_with_divided_parameters(trained):
    """The checkpoint is of ranks that had all parameters; dropout is on."""
    whole = trained("torch", 2)
    resume = {"checkpoint.resume": whole.checkpoint(MIDDLE)}
    full = trained("torch", 2, "torchrun", **FULL, **resume)
    assert full.run_json()["attempts"][-1]["parallel"]["shard"] == "full"
    assert_learns(full, whole.losses()[MIDDLE:], whole)
    exported = [
        load_file(os.path.join(run.directory, "export", "model.safetensors"))
        for run in (whole, full)
    ]
    for name, tensor in exported[0].items():
        np.testing.assert_allclose(exported[1][name], tensor, atol=2e-5, err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("embeddings", ["dense", "sparse"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_divided_parameters_learn_the_same(trained, embeddings, recomputed):
    settings = {"limit.sparse_embeddings": embeddings, "training.max_grad_norm": 0.3,
                "training.gradient_checkpointing": recomputed}  # fmt: skip
    whole, full = (trained("torch", 2, "torchrun", **settings, **d) for d in ({}, FULL))
    assert_learns(full, whole.losses(), whole)


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "first", "after", "second"),
    [(2, FULL, 2, {}), (2, FULL, 2, DIVIDED), (2, DIVIDED, 2, FULL), (2, FULL, 2, FULL),
     (3, FULL, 2, FULL), (2, FULL, 3, FULL), (2, FULL, 1, FULL), (1, {}, 2, FULL),
     (3, FULL, 1, {})],
)  # fmt: skip
def test_a_run_with_divided_parameters_goes_on_in_any_layout(trained, before, first, after, second):
    one = trained("torch", dropout=False)
    begun = trained("torch", before, "torchrun", dropout=False, **first)
    resume = {"checkpoint.resume": begun.checkpoint(MIDDLE)}
    resumed = trained("torch", after, "torchrun", dropout=False, **second, **resume)
    assert_learns(begun, one.losses(), one)
    assert_learns(resumed, one.losses()[MIDDLE:], one)


@pytest.mark.full
def test_an_earlier_best_step_is_exported_from_divided_parameters_too(trained):
    settings = {"evaluation.every_steps": 1, "evaluation.metric": "accuracy",
                "training.learning_rate": 0.2}  # fmt: skip
    whole, full = (trained("torch", 2, "torchrun", **settings, **d) for d in ({}, FULL))
    assert whole.run_json()["best_step"] == full.run_json()["best_step"] < STEPS
    ours, other = (run.run_json()["metrics"]["validation"]["loss"] for run in (full, whole))
    assert ours == pytest.approx(other, abs=1e-4)
    exported = [
        load_file(os.path.join(run.directory, "export", "model.safetensors"))
        for run in (whole, full)
    ]
    for name, tensor in exported[0].items():
        if UNDEFINED not in name:
            # AdamW divides by a gradient's size: of gradients that are all but 0, the rounding of
            # another order of sums is seen. A hundredth of one step of this rate.
            np.testing.assert_allclose(exported[1][name], tensor, atol=2e-3, err_msg=name)


# ------------------------------------------------------------------------ the other framework
@pytest.mark.parametrize(
    ("first", "second"),
    [("torch", "tensorflow"), pytest.param("tensorflow", "torch", marks=pytest.mark.full)],
)
def test_a_run_goes_on_in_the_other_framework(trained, first, second):
    begun = trained(first, dropout=False)
    settings = {"checkpoint.resume": begun.checkpoint(MIDDLE)}
    continued = trained(second, dropout=False, **settings)
    change = f"trained with {first} until here, and with {second} from here on"
    assert f"({begun.checkpoint(MIDDLE)}), {change}" in continued.output
    np.testing.assert_allclose(continued.losses(), begun.losses()[MIDDLE:], atol=1e-4, rtol=0)
    assert_close(begun, continued, atol=1e-3)
