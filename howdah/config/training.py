"""Section `training`: framework, optimizer, schedule, precision, memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from howdah.config.launchers import CommChoice
from howdah.config.types import Bytes, NodePath, Rare, Section, Usual


def _fraction_or_rows(value: Any) -> Any:
    """The value as it is: 1.0 is not a number of rows, though it equals 1."""
    if isinstance(value, float) and value >= 1:
        raise ValueError(
            f"a fraction is below 1 (got {value}): leave training.replay out (null) for all older"
            " rows, or write a number of rows without a point"
        )
    return value


LoraModule = Literal["query", "key", "value", "attended", "inner", "outer"]
"""A linear layer of a transformer layer, by its field of LayerNames (data/family_record.py)."""

Replay = Annotated[
    Annotated[float, Field(ge=0, lt=1)] | Annotated[int, Field(ge=0, strict=True)] | None,
    BeforeValidator(_fraction_or_rows),
]


class ParallelSection(Section):
    shard: Rare[Literal["none", "optimizer", "full"]] = "none"
    """What the ranks divide among themselves (framework torch only, not for elastic jobs). none:
    every rank has all of it. optimizer: each rank has AdamW's moments of its part of the weights
    (ZeRO-1), 8 bytes a weight divided by the number of ranks. full: weights and gradients too
    (FSDP2), 16 bytes a weight divided by the number of ranks; each layer is gathered when it
    computes, and its gradient is summed at once, so that each micro-batch sends 1.5 times what a
    whole step sends otherwise: set training.per_device_max_tokens so that one micro-batch holds a
    rank's rows of a step (training.comm: torch only). Checkpoints are the same,
    and a run may go on with another value or number of ranks. The step's result is the same, to
    float32's precision with full."""

    @property
    def divides(self) -> bool:
        """The ranks divide more than the rows."""
        return self.shard != "none"


class LoraSection(Section):
    rank: Rare[int | None] = Field(default=None, ge=1)
    """Rank of low-rank adapters (LoRA), such as 8: they and the classifier are trained, all other
    weights stay as they are, and ranks send a hundredth of the gradient. The export has the
    adapters merged into its weights. Use about ten times the learning rate. null: no adapters."""
    modules: Rare[list[LoraModule]] = Field(default=["query", "value"], min_length=1)
    """Linear layers that get an adapter in each transformer layer that is not frozen."""


class EarlyStopping(Section):
    patience: int | None = Field(default=None, ge=1)
    """Number of consecutive evaluations without improvement after which training stops. null: it
    does not stop early."""


class TrainingSection(Section):
    framework: Usual[Literal["tensorflow", "torch"]] = "tensorflow"
    """Framework that trains the model."""
    comm: Rare[CommChoice] = "auto"
    """Library that carries sums between ranks: horovod, or torch for torch.distributed (framework
    torch only). auto: torch.distributed where torchrun or a similar launcher has started the ranks
    (RANK, WORLD_SIZE, MASTER_ADDR), where torch is installed without Horovod, or, for GPUs, with a
    Horovod built without NCCL; else Horovod. A run may continue with another one."""
    parallel: ParallelSection = ParallelSection()
    """How the state of a model is divided among ranks."""
    gradient_compression: Rare[Literal["none", "bf16", "int8", "auto"]] = "none"
    """Numbers in which gradients cross the network. bf16: half the bytes; each rank's gradient and
    the sum, which is added in float32, are rounded to 8 bits of mantissa. int8: a quarter; what is
    rounded off is sent with a later step, all of it before a checkpoint or an evaluation. auto: the
    one that makes steps shorter, chosen once per run, after its first 11 steps between nodes.
    Weights, moments and checkpoints stay float32. Within one node it only costs time."""
    lora: LoraSection = LoraSection()
    """Low-rank adapters."""
    global_batch_size: Usual[int] = Field(default=32, ge=1)
    """Rows of one optimizer step over all ranks. It does not depend on the world size."""
    per_device_max_tokens: int | None = Field(default=None, ge=128)
    """Most tokens (with padding) of one micro-batch; a rank accumulates gradients over several. A
    step that runs out of memory is repeated with micro-batches of half the size, which all ranks
    then use for all later steps (framework torch only, not with training.parallel.shard: full).
    null: 8,192; on a GPU, where they can be halved, 65,536."""
    replay: Rare[Replay] = None
    """How many of an appended dataset's older training rows are trained on in addition to those of
    new parts: a fraction (with a point, below 1) or rows (a whole number), in whole shards chosen
    by the seed. A part is new if the dataset version of the model in model.init_from lacks it;
    without model.init_from only the newest part is new. null: all rows."""
    num_train_epochs: Usual[float] = Field(default=3.0, gt=0, allow_inf_nan=False)
    """Number of epochs; fractions are allowed."""
    max_steps: Usual[int | None] = Field(default=None, ge=1)
    """Number of optimizer steps after which training stops. It overrides num_train_epochs."""
    learning_rate: Usual[float] = Field(default=5e-5, gt=0, lt=1)
    """Peak learning rate."""
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    """Decay of the learning rate after the warm-up, to zero at the last step. constant: no
    decay."""
    warmup_ratio: Usual[float] = Field(default=0.0, ge=0.0, lt=1.0)
    """Fraction of the steps in which the learning rate rises linearly to its peak."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Decoupled weight decay, which is not applied to biases and norms."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Largest global norm of the reduced gradient, which is clipped to it. 0: no clipping."""
    precision: Usual[Literal["auto", "fp32", "bf16", "fp16"]] = "auto"
    """Precision of computations. auto: bf16 if it is faster on all ranks (GPUs of compute
    capability 8.0 and above, processors with AMX, AMD's with AVX512-BF16), else fp32. fp16 uses
    loss scaling, and is for GPUs only. Evaluations during training use this precision; the last
    one, which the gate reads, uses fp32, as the model is served."""
    label_smoothing_factor: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of a label that is spread over all labels. 0: no label smoothing."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """Class weights in the loss: balanced, or {label: weight}. A row's whole loss is multiplied by
    its label's weight. (With label smoothing torch's cross_entropy differs: it weights each class's
    term by that class.) With data.task multi_label: weights of the rows that have the label, as
    torch's pos_weight; balanced: rows without it / rows with it."""
    length_window: Rare[int] = Field(default=50, ge=1)
    """Global batches whose rows are sorted by length together, so that a batch has rows of similar
    length and little padding. 1: batches of random rows, which train better where labels correlate
    with length, but need more padding."""
    gradient_checkpointing: bool = False
    """Whether activations are recomputed to save memory (torch only)."""
    early_stopping: EarlyStopping = EarlyStopping()
    """Early stopping on evaluation.metric."""
    logging_steps: Rare[int] = Field(default=10, ge=1)
    """Number of steps between progress lines."""
    threads_per_rank: Rare[int | None] = Field(default=None, ge=1)
    """Compute threads of a rank. null: the node's cores divided by its ranks."""
    shard_cache_bytes: Rare[Bytes] = 20 * 2**30
    """Disk space for local copies of remote (or compressed) shards on a machine, shared by all runs
    and datasets, e.g. 20 GiB. It must hold two groups of shards (16 shards)."""
    shard_cache_directory: Rare[NodePath | None] = None
    """Local directory of those copies, the same for all ranks of a machine; null:
    $HOWDAH_CACHE/shards, or the user's cache."""
    seed: Usual[int] = Field(default=42, ge=0)
    """Seed of the batch order, the classifier's initial weights and dropout."""

    @property
    def halves_micro_batches(self) -> bool:
        """True if a step for which memory does not suffice is done again in smaller micro-batches.

        With FSDP2 the other ranks would wait inside the pass that failed here; in TensorFlow, in
        the graph that also sums the gradients.
        """
        return self.framework == "torch" and self.parallel.shard != "full"

    def max_tokens(self, *, gpu: bool = False) -> int:
        """Most tokens of one micro-batch, on a GPU before any was too large."""
        if self.per_device_max_tokens is not None:
            return self.per_device_max_tokens
        return 65_536 if gpu and self.halves_micro_batches else 8_192
