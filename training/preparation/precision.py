"""Chooses the precision that the ranks of a run compute in: one for all, on any machines."""

from __future__ import annotations

from howdah.config.model import Config
from howdah.core.machine import cpu_emulates_bf16, cpu_gains_by_bf16
from howdah.errors import ConfigError
from howdah.process.devices import Device
from howdah.training.comm.base import Comm
from howdah.training.run.run import Run


def precision_of(config: Config, device: Device) -> str:
    """fp32, bf16 or fp16: training.precision, where `auto` is resolved for this machine."""
    precision = config.training.precision
    if precision != "auto":
        return precision
    gains = device.gains_by_bf16 if device.gpu else cpu_gains_by_bf16()
    return "bf16" if gains else "fp32"


def agreed_precision(
    config: Config, comm: Comm, run: Run, device: Device, before: str | None
) -> str:
    """The precision for all ranks, although `auto` may mean bf16 on one machine and fp32 on
    another. Every rank enters.

    Args:
        before: precision of an earlier world, which stays, since models were built with it.
    Raises:
        ConfigError: fp16 is configured, but there is no GPU.
    """
    resolved = precision_of(config, device)
    if resolved == "fp16" and not device.gpu:
        raise ConfigError(
            "fp16 needs a GPU: a CPU emulates it, which is many times slower",
            where="training.precision",
            expected="auto, fp32 or bf16 on a CPU",
        )
    answers = comm.gather_json([resolved, before])
    settled = next((earlier for _, earlier in answers if earlier), None)
    if settled is not None:
        return settled
    without = [rank for rank, (precision, _) in enumerate(answers) if precision == "fp32"]
    if not without or len(without) == len(answers):
        return resolved
    what = "GPUs" if device.gpu else "processors"
    run.say(
        f"fp32 on all ranks: bf16 is not faster on the {what} of ranks"
        f" {', '.join(map(str, without))}; training.precision: bf16 would use it everywhere"
    )
    return "fp32"


def warn_of_emulation(precision: str, framework: str, comm: Comm, run: Run, device: Device) -> None:
    """Warn about ranks that emulate bf16: it was configured, or agreed on before they joined. Every
    rank enters."""
    if precision != "bf16" or (not device.gpu and framework != "torch"):
        return
    emulates = comm.gather_json(not device.gains_by_bf16 if device.gpu else cpu_emulates_bf16())
    ranks = [rank for rank, emulated in enumerate(emulates) if emulated]
    if ranks and device.gpu:
        run.say(
            f"warning: the GPUs of ranks {', '.join(map(str, ranks))} have no units for bf16"
            f" (compute capability below 8.0; here {device}): its products are emulated or refused;"
            " set training.precision to auto, fp32 or fp16"
        )
    elif ranks:
        run.say(
            f"warning: the processors of ranks {', '.join(map(str, ranks))} have no instructions"
            " for bf16 (AVX-512): torch's products take hundreds of times as long there as in fp32,"
            " and the other ranks wait; set training.precision to auto or fp32, or use other nodes"
        )
