"""The model of a step on more ranks, by itself and against measured steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest

from howdah.config.loader import from_dict, load
from howdah.errors import ClusterError, DataError, TrainingError, UsageError
from howdah.models.runs.run_json import RunFile
from howdah.training.planning import calibrate, preview, scaling, short_runs
from howdah.training.planning.scaling import Compute, Gradient, Network, Work
from tests.runs.training_runs import ROOT, SETTINGS, _nested

COMPUTE = Compute(fixed_seconds=0.1, token_seconds=1e-4)
GRADIENT = Gradient(
    dense=(60_000_000, 40_000_000),
    without_words=(60_000_000,),
    vocabulary=30_000,
    width=300,
)
LINK = Network(byte_seconds=1e-9, message_seconds=1e-3, hop_seconds=5e-5)
MICRO = Work(rows=64, tokens=8000, unique_ids=4000)


def world(workers: int, network: Network = LINK, gradient: Gradient = GRADIENT, batch: int = 64):
    return scaling.predict(
        workers,
        work=Work(rows=batch / workers, tokens=125 * batch / workers, unique_ids=2000 / workers),
        alone=Work(rows=batch, tokens=125 * batch, unique_ids=2000),
        micro=MICRO,
        compute=COMPUTE,
        gradient=gradient,
        network=network,
    )


def test_a_ring_s_seconds_by_hops_and_bytes():
    # four ranks: each sends 3 quarters of the message twice, in 6 hops
    assert LINK.allreduce(4e9, 4) == pytest.approx(1e-3 + 6 * 5e-5 + 6.0)
    assert LINK.allgather(1e9, 4) == pytest.approx(1e-3 + 3 * 5e-5 + 3.0)


def test_a_world_of_one_has_efficiency_1():
    alone = world(1)
    assert alone.network_seconds == 0.0 and alone.efficiency == pytest.approx(1.0)
    assert alone.step_seconds == pytest.approx(COMPUTE.seconds(8000))
    assert alone.accumulation_for_90 == 1


def test_efficiency_falls_with_ranks_and_with_slower_links():
    worlds = [world(count) for count in (2, 4, 8, 64)]
    assert sorted((one.efficiency for one in worlds), reverse=True) == [
        one.efficiency for one in worlds
    ]
    slow = Network(byte_seconds=1e-7, message_seconds=1e-3, hop_seconds=5e-5)
    assert world(8, slow).step_seconds > world(8).step_seconds
    assert world(8, slow).accumulation_for_90 > world(8).accumulation_for_90


@pytest.mark.parametrize("workers", [2, 8, 64, 512])
@pytest.mark.parametrize("byte_seconds", [1e-10, 1e-9, 1e-8])
def test_the_accumulation_for_90_is_the_least_that_reaches_it(workers, byte_seconds):
    network = Network(byte_seconds=byte_seconds, message_seconds=1e-3, hop_seconds=5e-5)
    count = world(workers, network).accumulation_for_90
    backward = 2 / 3 * COMPUTE.token_seconds * MICRO.tokens
    reduction = GRADIENT.seconds(network, 8000, workers, backward=backward)
    alone_rate = 64 / COMPUTE.seconds(8000)

    def efficiency(micros: int) -> float:
        seconds = COMPUTE.seconds(micros * MICRO.tokens) + reduction
        return micros * MICRO.rows / seconds / alone_rate

    assert efficiency(count) >= 0.9
    assert count == 1 or efficiency(count - 1) < 0.9


def test_sparse_or_dense_is_decided_as_in_the_loops():
    assert not GRADIENT.sparse(10, 1)
    assert GRADIENT.sparse(2000, 2) and not GRADIENT.sparse(2000, 64)
    frozen = Gradient(**{**GRADIENT.__dict__, "vocabulary": 0})
    assert not frozen.sparse(10, 2)
    # rows cost bytes for each rank, dense ones do not: few ranks gain
    assert GRADIENT.seconds(LINK, 2000, 2) < GRADIENT.seconds(LINK, 15_000, 2)


def test_what_the_backward_pass_hides_of_a_reduction():
    """Two messages of 30 MB, of 31 ms each, and the agreement's 1.2 ms."""
    gradient = Gradient(dense=(30_000_000, 30_000_000), without_words=(), vocabulary=0, width=1)
    agreement = LINK.allreduce(64, 2)
    one = LINK.allreduce(30e6, 2)
    assert gradient.seconds(LINK, 0, 2) == pytest.approx(2 * one + agreement)
    # The first message is complete after half of the pass, the second at its end.
    for backward in (0.2, 2 * one):
        exposed = gradient.seconds(LINK, 0, 2, backward=backward)
        assert exposed == pytest.approx(one + agreement)
    exposed = gradient.seconds(LINK, 0, 2, backward=one)
    assert exposed == pytest.approx(0.5 * one + one + agreement)
    within_a_node = scaling.predict(
        2, work=MICRO, alone=MICRO, micro=MICRO, compute=COMPUTE, gradient=gradient, network=LINK,
        overlapped=False,
    )  # fmt: skip
    assert within_a_node.network_seconds == pytest.approx(2 * one + agreement)


def test_compression_sends_fewer_bytes_and_takes_time_to_code():
    numbers = GRADIENT.sent("int8", 1e-9)
    assert sum(numbers.dense) == pytest.approx(100e6 / 4 * (1 + 2 / 128))
    assert numbers.row_bytes == 600 and GRADIENT.row_bytes == 1200
    coding = 25e6 * 1e-9
    smaller = GRADIENT.sent("int8", 0.0).seconds(LINK, 15_000, 8)
    assert numbers.seconds(LINK, 15_000, 8) == pytest.approx(smaller + coding)
    assert smaller < 0.3 * GRADIENT.seconds(LINK, 15_000, 8)
    predictions = [world(8, gradient=GRADIENT.sent(n, 0.0)) for n in scaling.NUMBER_BYTES]
    assert [one.compression for one in predictions] == ["none", "bf16", "int8"]
    seconds = [one.step_seconds for one in predictions]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("sums", "coding", "best"),
    [
        (0.1, 0.0, "none"),  # hidden by the backward pass
        (2.0, 0.0, "int8"),
        (2.0, 2.0, "none"),  # a processor that codes more slowly than the network sends
        (1.2, 0.0, "bf16"),  # int8 would save less than a 20th more
    ],
)
def test_a_compression_is_chosen_where_it_pays(sums, coding, best):
    steps = scaling.compressed_steps(
        1.0, sums, backward=0.6, messages=16, coding={"none": 0.0, "bf16": coding, "int8": coding}
    )
    assert scaling.what_pays(steps) == best
    # The last message is complete at the end of the pass, the others by their shares of it.
    assert steps["none"] == pytest.approx(1.0 + max(sums / 16, sums - 0.6 * 15 / 16) + 0.0)


def test_the_fit_is_robust_to_an_outlier():
    tokens = [1000, 2000, 1500, 1000, 2000, 1800]
    seconds = [0.3 + 2e-4 * count for count in tokens]
    seconds[2] *= 9
    fitted = scaling.fit(tokens, seconds)
    assert fitted.fixed_seconds == pytest.approx(0.3) and fitted.token_seconds == pytest.approx(
        2e-4
    )
    alike = scaling.fit([100, 100], [1.0, 3.0])
    assert alike == Compute(fixed_seconds=0.0, token_seconds=0.02)
    assert scaling.fit([100, 200], [1.0, 3.0]).fixed_seconds == 0.0  # never negative


@pytest.mark.parametrize("text", ["", "25", "0G", "-1G", "fast", "25GB"])
def test_a_malformed_speed_is_refused(text):
    with pytest.raises(UsageError, match="not the speed"):
        scaling.bits_per_second(text)


def test_speeds_are_bits():
    assert scaling.bits_per_second("1.5g") == 1.5e9
    assert scaling.bits_per_second("400 Mbit/s") == 4e8


@pytest.mark.parametrize("text", ["", "two", "0", "4,-1", "1.5"])
def test_a_malformed_list_of_workers_is_refused(text):
    with pytest.raises(UsageError, match="not a list of worker counts"):
        preview._worlds(text)


def test_the_lines_show_each_world_once_and_the_model_s_error():
    assert preview._worlds("512,8, 64,8") == [8, 64, 512]
    answer = {
        "network": "25G", "framework": "torch", "threads_per_rank": 1, "fixed_seconds": 0.1,
        "seconds_per_1000_tokens": 0.1, "gradient_bytes": 100_000_000,
        "seconds_per_gigabyte": 1.0, "limited_by": "the processor",
        "here": [{"workers": 2, "predicted_seconds": 0.9, "measured_seconds": 1.0, "error": -0.1}],
        "worlds": [world(count).as_dict() for count in (8, 64)],
        "for_90": [
            {"workers": 8, "compression": "int8",
             "accumulation": {"1G": None, "10G": 12, "25G": 5, "100G": 1}},
        ],
    }  # fmt: skip
    lines = preview.scaling_lines(answer)
    assert "np=2 here: predicted 900 ms per step, measured 1,000 ms (-10%)" in lines
    assert [line.split()[0] for line in lines if "%  " in line and "for" not in line] == ["8", "64"]
    assert any("the processor: 1.00 GB/s" in line for line in lines)
    assert lines[-1].split() == ["8", "int8", "none", "12", "5", "1"]


# --------------------------------------------------------------------------------- real steps
@pytest.fixture
def config_path(tmp_path, tiny_dataset, tiny_model_dir):
    """A configuration file of a short training of the tiny model."""
    values = SETTINGS | {
        "run.directory": str(tmp_path / "run"),
        "data.dataset": tiny_dataset.path,
        "model.base": tiny_model_dir,
        "training.framework": "torch",
    }
    path = tmp_path / "given.yaml"
    path.write_text(json.dumps(_nested(values)))
    return str(path)


@pytest.mark.mpi
@pytest.mark.full  # in every run with given seconds, above, and a training that fails, below
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_plan_measures_steps_and_removes_its_files(config_path, tmp_path, framework):
    place = tmp_path / "tmp"
    place.mkdir()
    argv = [sys.executable, "-m", "howdah.cli", "plan", "--config", config_path, "--json",
            "--workers", "2,12,64", "--network", "25G",
            "--set", f"training.framework={framework}"]  # fmt: skip
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(place)}
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["steps"] == 10  # the preview's keys are still there
    scaling_answer = answer["scaling"]
    assert [one["workers"] for one in scaling_answer["here"]] == [1, 2]
    assert all(one["measured_seconds"] > 0 for one in scaling_answer["here"])
    worlds = {one["workers"]: one for one in scaling_answer["worlds"]}
    assert worlds[64]["global_batch_size"] == 64  # at least a row per rank
    assert worlds[2]["global_batch_size"] == worlds[12]["global_batch_size"] == 12
    assert worlds[12]["network_seconds"] > worlds[2]["network_seconds"] > 0
    assert not (tmp_path / "run").exists()
    assert not [name for name in os.listdir(place) if name.startswith("howdah-plan")]
    left = [one for one in psutil.process_iter(["cmdline"])
            if str(place) in " ".join(one.info["cmdline"] or [])]  # fmt: skip
    assert left == []


def test_too_few_rows_to_measure_are_refused(config_path, tiny_dataset):
    rows = tiny_dataset.manifest.rows("train")
    config = load(config_path, [f"training.global_batch_size={rows // 2}"])
    with pytest.raises(DataError) as caught:
        calibrate.measure(config, print)
    assert caught.value.got == "2" and str(rows // 2) in caught.value.expected


def test_a_failing_training_s_error_is_reported(config_path, tmp_path):
    config = load(config_path, ["training.max_steps=10", "training.precision=fp16"])  # not on a CPU
    with pytest.raises(TrainingError) as caught:
        short_runs.steps(short_runs.short(config, str(tmp_path / "short"), 12, 1), 1)
    assert "fp16" in caught.value.got


def test_a_short_run_keeps_the_task_s_metric():
    config = from_dict({"run": {"directory": "run"}, "data": {"task": "regression"}})
    short = short_runs.short(config, "short", 12, 1)
    assert short.evaluation.metric == config.evaluation.metric == "mse"


@pytest.mark.parametrize(
    ("installed", "framework", "count", "processes"),
    [
        (True, "torch", 2, 1),
        (True, "tensorflow", 2, 1),
        (False, "torch", 2, 2),
        (False, "tensorflow", 1, 1),
    ],
)
def test_short_runs_need_horovod_of_tensorflow_s_ranks_alone(
    monkeypatch, installed, framework, count, processes
):
    monkeypatch.setattr(short_runs, "horovod_installed", lambda framework: installed)
    started = list(short_runs._commands(["/bin/true"], count, framework, "/tmp/x"))
    assert len(started) == processes
    assert all(argv[-1] == "/bin/true" for argv, _ in started)
    if processes == count:
        assert all(argv == ["/bin/true"] for argv, _ in started)
    else:
        assert started[0][0][3:] == [
            "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "/bin/true",
        ]  # fmt: skip


def test_several_short_ranks_of_tensorflow_without_horovod_are_refused(monkeypatch):
    monkeypatch.setattr(short_runs, "horovod_installed", lambda framework: False)
    with pytest.raises(ClusterError, match="Horovod for tensorflow is not installed") as caught:
        list(short_runs._commands(["/bin/true"], 2, "tensorflow", "/tmp/x"))
    assert "howdah doctor" in caught.value.remedy


@pytest.mark.mpi
def test_short_ranks_of_torch_without_horovod_meet_in_a_file(config_path, tmp_path, monkeypatch):
    monkeypatch.setattr(short_runs, "horovod_installed", lambda framework: False)
    config = short_runs.short(load(config_path, []), str(tmp_path / "short"), 12, 1)
    assert len(short_runs.steps(config, 2, 5)) == 3
    (attempt,) = RunFile(config.run.directory).values["attempts"]
    assert attempt["comm"] == "torch.distributed (gloo)"
    assert attempt["world_size"] == 2
