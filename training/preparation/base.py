"""The base model of a run, which rank 0 reads and checks, and broadcasts to all.

So storage is read once, and all ranks have the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from howdah import redact, storage
from howdah.config.model import Config
from howdah.config.splits import VALIDATION
from howdah.data.inputs import encoder_of_model
from howdah.data.manifest import Dataset
from howdah.errors import ConfigError, ModelError
from howdah.models.base import with_pinned_base
from howdah.models.metrics import tally
from howdah.models.weights import lora, parameters
from howdah.models.weights.pretrained import BaseModel
from howdah.training.comm.base import Comm
from howdah.training.model.warm import begin
from howdah.training.run.run import Run


def agreed_base(
    config: Config,
    dataset: Dataset,
    comm: Comm,
    run: Run,
    *,
    learnt: Sequence[str] | None = None,
) -> tuple[BaseModel, dict[str, np.ndarray]]:
    """The base model, read by rank 0 for all, and the weights to begin with. Every rank enters.

    Args:
        learnt: identities of the parts that model.init_from was trained on, for run.json.
    Returns:
        (base without its weights, all tensors of the model to train).
    Raises:
        ConfigError, ModelError: the base model does not fit the dataset.
    """
    manifest, base, facts = dataset.manifest, None, None
    if comm.rank == 0:
        config = with_pinned_base(config)  # only on rank 0: another version may be published now
        base = begin(config, manifest.labels, check=lambda base: _check_fit(config, dataset, base))
        for note in base.notes:
            run.say(note)
        begins = {"source": redact.text(base.source), "hash": base.hash}
        if config.model.init_from is not None:
            begins["init_from"] = config.model.init_from
            if learnt is not None:
                begins["parts"] = list(learnt)
        run.update(base=begins)
        facts = {"config": base.config, "hash": base.hash, "source": base.source}
    facts = comm.broadcast_json(facts)
    # Any rank may have to export, since a rank of an elastic job may outlive rank 0.
    files = broadcast_files({} if base is None else base.tokenizer_files, comm, 0)
    weights = {}
    if base is None:
        base = BaseModel(weights={}, tokenizer_files=files, **facts)
    else:
        weights = parameters.start_weights(
            base.config,
            base.weights,
            num_labels=len(manifest.labels),
            seed=config.training.seed,
            adapters=lora.adapter_shapes(base.config, config.model, config.training.lora),
        )
        base = replace(base, weights={})  # frees a quarter of a gigabyte
    return base, comm.broadcast(weights)


def broadcast_files(files: dict[str, bytes], comm: Comm, root: int) -> dict[str, bytes]:
    """The root's files by name, on every rank."""
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}
    return {name: array.tobytes() for name, array in comm.broadcast(arrays, root=root).items()}


def _check_fit(config: Config, dataset: Dataset, base: BaseModel) -> None:
    manifest, family = dataset.manifest, base.family
    if manifest.task != config.data.task:
        raise ConfigError(
            "the dataset was made for another task",
            where="data.task",
            expected=f"{manifest.task} ({dataset.path})",
            got=config.data.task,
            remedy="correct data.task or data.dataset, or run `howdah etl` with this configuration",
        )
    judged = config.evaluation.max_rows or manifest.rows(VALIDATION)
    tally.require_rows(config.evaluation.metric, judged)
    if family.kind != manifest.kind or config.training.framework not in family.frameworks:
        raise ModelError(
            f"the base model, a {family.title}, does not fit the dataset or the framework",
            where=base.source,
            expected=f"rows of {family.kind}s, and {' or '.join(family.frameworks)}",
            got=f"rows of {manifest.kind}s ({dataset.path}), {config.training.framework}",
            remedy="set model.base, data.kind and training.framework to values that fit together,"
            " and run `howdah etl` again",
        )
    encoder = encoder_of_model(base.config, base.tokenizer_files, base.source)
    if encoder.hash != manifest.tokenizer.hash:
        raise ModelError(
            "the base model and the dataset prepare images differently"
            if family.kind == "image"
            else "the base model's tokenizer is not the dataset's: its ids mean different words",
            where=base.source,
            expected=f"{manifest.tokenizer.hash} ({manifest.tokenizer.source})",
            got=encoder.hash,
            remedy="set model.base to the dataset's base, or run `howdah etl` with this one",
        )
    vocabulary, longest = family.keys.vocabulary, family.longest(base.config)
    if family.kind == "text" and base.config[vocabulary] < manifest.tokenizer.vocab_size:
        raise ModelError(
            "the base model has fewer embeddings than its tokenizer has words",
            where=base.source,
            expected=f"{vocabulary} of at least {manifest.tokenizer.vocab_size}",
            got=str(base.config[vocabulary]),
            remedy="use the tokenizer that belongs to the base model",
        )
    if longest < manifest.max_length:
        raise ModelError(
            "the dataset's rows are longer than the base model can read",
            where=base.source,
            expected=f"data.max_length of at most {longest}",
            got=f"{manifest.max_length} ({storage.name(dataset.path)})",
            remedy="lower data.max_length and run `howdah etl` again",
        )
    parameters.trainable_names(base.config, config.model)  # refuses to freeze too many layers
