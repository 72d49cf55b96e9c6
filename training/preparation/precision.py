"""Which precision the ranks of a run compute in: one for all, whatever machines they are on."""

from __future__ import annotations

from howdah.config.loader import Config
from howdah.core.machine import cpu_emulates_bf16, cpu_gains_by_bf16
from howdah.errors import ConfigError
from howdah.process.devices import Device
from howdah.training.comm.base import Comm
from howdah.training.run.run import Run


def precision_of(config: Config, device: Device) -> str:
    """fp32, bf16 or fp16: training.precision, `auto` resolved for this machine and device."""
    wanted = config.training.precision
    if wanted != "auto":
        return wanted
    gains = device.gains_by_bf16 if device.gpu else cpu_gains_by_bf16()
    return "bf16" if gains else "fp32"


def agreed_precision(
    config: Config, comm: Comm, run: Run, device: Device, before: str | None
) -> str:
    """The same on every rank, though `auto` may mean bf16 on one machine and fp32 on another.

    Every rank enters.

    Args:
        before: what an earlier world has agreed on: it stays, since models were built with it.
    Raises:
        ConfigError: fp16 without a GPU.
    """
    own = precision_of(config, device)
    if own == "fp16" and not device.gpu:
        raise ConfigError(
            "fp16 trains on GPUs only",
            where="training.precision",
            expected="auto, fp32 or bf16 on a CPU (fp16 is emulated there, and many times slower)",
            got="fp16",
            remedy="set training.precision to auto",
        )
    said = comm.gather_json([own, before])
    settled = next((kept for _, kept in said if kept), None)
    if settled is not None:
        return settled
    without = [rank for rank, (precision, _) in enumerate(said) if precision == "fp32"]
    if not without or len(without) == len(said):
        return own
    what = "GPUs" if device.gpu else "processors"
    run.say(
        f"fp32 on all ranks: the {what} of rank(s) {', '.join(map(str, without))} gain nothing"
        " by bf16; training.precision: bf16 would have it everywhere"
    )
    return "fp32"


def warn_of_emulation(precision: str, framework: str, comm: Comm, run: Run, device: Device) -> None:
    """bf16 was configured, or agreed on before a rank without it joined. Every rank enters."""
    if precision != "bf16" or (not device.gpu and framework != "torch"):
        return
    emulates = comm.gather_json(not device.gains_by_bf16 if device.gpu else cpu_emulates_bf16())
    ranks = [rank for rank, own in enumerate(emulates) if own]
    if ranks and device.gpu:
        run.say(
            f"warning: the GPUs of rank(s) {', '.join(map(str, ranks))} have no units for bf16"
            f" (compute capability below 8.0; here {device}): its products are emulated or refused;"
            " set training.precision to auto, fp32 or fp16"
        )
    elif ranks:
        run.say(
            f"warning: the processors of rank(s) {', '.join(map(str, ranks))} have no instructions"
            " for bf16 (AVX-512): torch's products take hundreds of times as long there as in fp32,"
            " and the other ranks wait; set training.precision to auto or fp32, or take other nodes"
        )
