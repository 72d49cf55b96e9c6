"""Which model scores, at which version, and where its markers lie."""

from __future__ import annotations

from dataclasses import dataclass

from howdah import storage
from howdah.errors import UsageError
from howdah.models import variants
from howdah.models.registry import decision_hash
from howdah.run_files import RUN_JSON
from howdah.serving.prediction.cluster import Model, find_model


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that scores partitions, held at one version."""

    name: str
    """Its value in the output's partition column `model`: the published model's name, else the
    run's id."""
    version: int | None
    """Of the published model; None: an export."""
    run_id: str | None
    """Of the run that made it; None: a model of others."""
    weights: str
    """SHA-256 of the weights; of a model of others a hash of its files' sizes and times."""
    decision: str | None = None
    """Hash of what `howdah threshold` has put into the export; None: nothing."""
    root: str
    """The directory below which its markers lie: the published model's, the run's, or the
    export's own."""
    model: Model

    @property
    def title(self) -> str:
        """For messages: "news v=3"."""
        return self.name if self.version is None else f"{self.name} v={self.version}"

    @property
    def identity(self) -> dict[str, str | int | None]:
        """What makes scored rows those of another model."""
        return {
            "name": self.name,
            "version": self.version,
            "run_id": self.run_id,
            "weights": self.weights,
            "decision": self.decision,
        }


def find_scorer(model: str, publish_directory: str, framework: str | None = None) -> Scorer:
    """The model of this name; a published one at the version that is current now.

    Args:
        model: see `variants.find`.
        framework: that is asked for.
    Raises:
        ModelError: there is none, or its files are broken.
        UsageError: it is a model of images, or its name cannot be a partition's value.
    """
    found = variants.find(model, publish_directory)
    files = find_model(found.path, framework)
    name = found.name if found.version is not None else (found.run_id or f"model-{files.key}")
    if not name.isprintable() or "/" in name:
        raise UsageError(
            "the model's name cannot be the value of a partition",
            where=found.path,
            expected="a name without slashes and control characters",
            got=repr(name),
        )
    return Scorer(
        name=name,
        version=found.version,
        run_id=found.run_id,
        weights=str(found.info.get("weights_sha256") or files.key),
        decision=decision_hash(found.info),
        root=root_of(found),
        model=files,
    )


def root_of(found: variants.Variant) -> str:
    """The directory below which `howdah score` puts markers: of the published model, the run, or
    the export itself."""
    above = storage.parent(found.path)
    if found.version is not None or storage.exists(storage.join(above, RUN_JSON)):
        return above
    return found.path
