"""What decides each scenario: questions to the figures that other lessons have printed."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r"^(?:\[\d+\]<stdout>: ?)?(\S.*\S) = (-?[\d.,]+(?:e[-+]?\d+)?)(?: .*)?$")
MEASURED = Path(sys.argv[1])  # the folder of all lessons' outputs
GPU_MEMORY, VIT_WEIGHTS = 24e9, 86e6  # ViT-B on a card of 24 GB


def figure(lesson: str, name: str) -> float:
    """What a lesson has printed as `name = value unit`."""
    for path in MEASURED.glob(f"{lesson}-*/output.txt"):
        for line in path.read_text().splitlines():
            if (match := LINE.match(line.strip())) and match[1] == name:
                return float(match[2].replace(",", ""))
    sys.exit(f"lesson {lesson} has not printed {name!r}: run `make lessons ONLY={lesson}` first")


@dataclass
class Question:
    """One step of a decision: two figures, and what follows from them."""

    asks: str
    lesson: str
    values: tuple[float, float]
    unit: str
    holds: bool
    yes: str
    no: str

    @property
    def decides(self) -> str:
        """What the figures decide."""
        return self.yes if self.holds else self.no


def copies() -> float:
    """Bytes a weight needs in training, from a rank's tensors after the backward pass."""
    return 4 * figure("12", "no ZeRO, tensors of a rank after backward") / figure("12", "weights")


def scenario_a() -> list[Question]:
    """A vision transformer, several machines with GPUs, medium data."""
    need = VIT_WEIGHTS * copies()
    ring, server = (figure("03", f"{way}, 8 ranks, step") for way in ("ring", "server"))
    after, buckets = (figure("04", f"{way}: a step") for way in (
        "all-reduce after the backward pass", "DDP, buckets of 2 MB"))  # fmt: skip
    torch, tf = (
        figure("05", f"{name}: loss of the last step") for name in ("PyTorch", "TensorFlow")
    )
    return [
        Question("Does one GPU hold the training?", "12", (need / 1e9, GPU_MEMORY / 1e9), "GB",
                 need < GPU_MEMORY, "data parallelism", "FSDP2 or ZeRO-3"),
        Question("Does an all-reduce beat a server at 8 ranks?", "03", (ring, server), "ms",
                 ring < server, "all-reduce", "a parameter server"),
        Question("Does the backward pass hide the network?", "04", (buckets, after), "ms",
                 buckets < after, "DDP's buckets", "accumulation or compression"),
        Question("Do the systems learn the same?", "05", (torch, tf), "loss",
                 abs(torch - tf) < 1e-3, "what the cluster starts: torchrun", "find out why"),
    ]  # fmt: skip


def scenario_b() -> list[Question]:
    """ETL and training on the Spark or Hadoop cluster that is there."""
    mllib = max(figure("08", f"{name}, texts with the right label")
                for name in ("random forest", "logistic regression"))  # fmt: skip
    bert = figure("08", "DistilBERT, texts with the right label")
    by_file, by_function = (
        figure("09", f"failures of three that look like success, by a {how}")
        for how in ("file", "function")
    )
    torn, whole = (figure("15", f"resumes after step, {how}, killed in the middle of the write")
                   for how in ("over the last one", "renamed last"))  # fmt: skip
    return [
        Question("Is MLlib as good on these texts?", "08", (mllib, bert), "%", mllib >= bert,
                 "MLlib ends it here", "a transformer beside Spark"),
        Question("Does TorchDistributor hide failures of a file?", "09", (by_file, by_function),
                 "of 3", by_file > by_function, "pass it a function", "either form"),
        Question("Does a kill in a save lose what was saved?", "15", (torn, whole), "step",
                 torn < whole, "write beside it, rename last", "any order"),
    ]  # fmt: skip


def scenario_c() -> list[Question]:
    """Research: many trials, and the best model into service."""
    epochs, most = figure("07", "epochs trained"), figure("07", "epochs without ASHA")
    study = figure("07", "the study")
    inside = figure("07", "of it between the first and the last report, all trials")
    by_user = figure("07", "users who saw both models")
    drawn = figure("07", "users who saw both models, drawn for each request")
    noticed = figure("13", "seconds until another machine has noticed")
    return [
        Question("Does stopping early pay?", "07", (epochs, most), "epochs", epochs < most,
                 "ASHA", "all epochs"),
        Question("Is most of a study training?", "07", (inside, study), "s", inside > study / 2,
                 "a trial is processes of Ray Train", "longer trials, or several in one process"),
        Question("Is a lost machine's trial taken over within a minute?", "13", (noticed, 60), "s",
                 noticed < 60, "the database is enough", "a scheduler that watches"),
        Question("Does a split by user keep users apart?", "07", (by_user, drawn), "users",
                 by_user < drawn, "A/B by a hash of the user", "A/B by request"),
    ]  # fmt: skip


SCENARIOS = {
    "A. A vision transformer on several machines with GPUs": scenario_a,
    "B. From ETL to training on a Spark or Hadoop cluster": scenario_b,
    "C. Research: many trials, the best into service": scenario_c,
}
