"""Chooses what a model is run with, a framework or onnxruntime, and builds its forward pass."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.core.processes import environ
from howdah.errors import ModelError, UsageError
from howdah.models.export import onnx_graph
from howdah.models.forward import forward_onnx
from howdah.models.version import Version
from howdah.models.weights.pretrained import WEIGHTS, BaseModel
from howdah.process import env
from howdah.process.quiet import starting_tensorflow

FRAMEWORKS = ("torch", "tensorflow")
"""Frameworks that models are trained with."""
ONNX = "onnx"
"""onnxruntime with the export's model.safetensors, in place of a framework."""
RUNTIMES = (*FRAMEWORKS, *onnx_graph.FILES)
"""Names of all runtimes that models are run with."""

Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]

_WAITING = "OMP_WAIT_POLICY"


# ------------------------------------------------------------------------------------ choosing
def serving_framework(version: Version, requested: str | None = None) -> str:
    """The runtime of a model in predict, score and serve: the requested one, else onnx if the
    export has its graph and onnxruntime is installed. Without a graph it is the framework that is
    loaded in this process, else the one that it was trained with, else any, else onnxruntime.

    Raises:
        UsageError: the requested framework is unknown, or not installed.
        ModelError: no framework is installed.
    """
    if requested is not None and requested not in RUNTIMES:
        raise UsageError("unknown framework", expected=" or ".join(RUNTIMES), got=requested)
    if requested is not None and not _installed(requested):
        raise UsageError(
            f"the framework {requested} is not installed",
            expected=" or ".join(name for name in RUNTIMES if _installed(name)) or "none installed",
        )
    graph = ONNX if onnx_graph.entry(version.info, ONNX) is not None else None
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    trained_with = version.info.get("framework")
    for name in (requested, graph, *loaded, trained_with, *FRAMEWORKS, ONNX):
        if name in RUNTIMES and _installed(name):
            return name
    raise ModelError(
        "no runtime for the model is installed",
        expected="onnxruntime, torch or tensorflow",
        remedy="install the project's packages, e.g. `make setup`; or pip install onnxruntime",
    )


def training_framework(version: Version) -> str | None:
    """The framework that a model was trained with, if it is installed: it evaluates a whole split,
    on a GPU where there is one."""
    name = version.info.get("framework")
    return name if name in FRAMEWORKS and _installed(name) else None


def _installed(name: str) -> bool:
    package = "onnxruntime" if name in onnx_graph.FILES else name
    return package in sys.modules or importlib.util.find_spec(package) is not None


# ------------------------------------------------------------------------------------- running
def prepare(chosen: str, threads: int | None) -> int:
    """Set the environment that the runtime reads at import. Returns the number of compute threads.

    Args:
        threads: compute threads; None: the cores of this process.
    """
    if chosen in onnx_graph.FILES:
        return threads or env.threads_per_rank(env.rank_env().local_size)
    return env.prepare(chosen, threads=threads)


def forward_of(
    chosen: str,
    base: BaseModel,
    info: Mapping,
    *,
    local: str,
    where: str,
    classes: int,
    threads: int,
    first_type_ends: int | None,
) -> tuple[Forward, bool]:
    """(forward pass, True if it runs on a GPU).

    Args:
        base: the model, with its weights, unless the export has a graph that reads them.
        info: howdah.json; empty for a third-party model.
        local: the export's directory on this machine.
        where: the export, for messages.
        threads: the number that `prepare` returned.
        first_type_ends: for pairs; None: all tokens have type 0.
    Raises:
        ModelError: the model does not run with this runtime, or its files do not fit each other.
    """
    if chosen in onnx_graph.FILES:
        from howdah.models.opened.onnx_session import mapped_tensors, open_session

        forward_onnx.require(base.config)
        session = partial(open_session, classes=classes, threads=threads, where=where)
        if onnx_graph.entry(info, chosen) is not None:
            graph = onnx_graph.of_file(local, info, chosen, base.config, where=where)
            path = storage.local_path(storage.join(local, WEIGHTS))
            if chosen == ONNX and os.path.islink(path):
                return session(graph, mapped_tensors(path)), False
            return session(graph, folder=local), False
        if chosen == ONNX:  # a graph that is built now
            graph = onnx_graph.in_memory(base.config, base.weights, first_type_ends=first_type_ends)
            return session(graph, base.weights), False
        raise ModelError(
            f"the export has no {onnx_graph.FILES[chosen]}",
            where=where,
            remedy=f"`howdah export --set export.formats=[hf,{chosen}]` adds it to the run's"
            " export",
        )
    if chosen not in base.family.frameworks:
        raise ModelError(
            f"a {base.family.title} does not run with {chosen}",
            where=where,
            expected=" or ".join(base.family.frameworks),
            remedy=f"leave --framework out, or install {base.family.frameworks[0]}",
        )
    return _forward(chosen, base.config, base.weights, classes, first_type_ends=first_type_ends)


def _grow_memory(devices: Any) -> None:
    """Let TensorFlow allocate GPU memory as needed, so that several processes can share a GPU.

    By default the first process allocates all of it. Tested with simulated devices, not on a GPU.

    Args:
        devices: `tf.config`.
    """
    for gpu in devices.list_physical_devices("GPU"):
        # It cannot be changed once TensorFlow has started, which the calling program may have done.
        with contextlib.suppress(RuntimeError):
            devices.experimental.set_memory_growth(gpu, True)


def _forward(
    framework: str,
    config: dict,
    weights: dict[str, np.ndarray],
    classes: int,
    *,
    first_type_ends: int | None,
) -> tuple[Forward, bool]:
    """(forward pass, True if it runs on a GPU)."""
    # Full precision, so that scores do not depend on the machine.
    settings = {
        "num_labels": classes,
        "training": TrainingSection(framework=framework, precision="fp32"),
        "model": ModelSection(),
        "first_type_ends": first_type_ends,
    }
    build = {"torch": _forward_torch, "tensorflow": _forward_tensorflow}[framework]
    return build(config, weights, settings)


def _forward_torch(config: dict, weights: dict, settings: dict) -> tuple[Forward, bool]:
    # OpenMP's threads spin while they wait for each other. Beside other processes, whose cores they
    # take, a text then costs several times the processor time. OpenMP reads this when it is loaded.
    with environ({_WAITING: os.environ.get(_WAITING, "PASSIVE")}):
        import torch

    from howdah.models.forward import forward_torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = forward_torch.build(config, weights, device=device, **settings)
    return forward_torch.forward_fn(net), device == "cuda"


def _forward_tensorflow(config: dict, weights: dict, settings: dict) -> tuple[Forward, bool]:
    with starting_tensorflow():
        import tensorflow as tf

        from howdah.models.forward import forward_tf

        _grow_memory(tf.config)
        tf.constant(0)  # starts the runtime, which looks for GPUs and logs missing libraries
        gpu = bool(tf.config.list_logical_devices("GPU"))
    return forward_tf.forward_fn(forward_tf.build(config, weights, **settings)), gpu
