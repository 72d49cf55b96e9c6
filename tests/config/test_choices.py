"""Every choice of the configuration is handled where it is used, without fall-through."""

from typing import Any, Literal, get_args, get_origin

import pytest

from howdah.config.job import JobSection
from howdah.config.model import Config, DataSection
from howdah.config.training import TrainingSection
from howdah.config.types import Section
from howdah.data.splits.planner import pad_multiple
from howdah.etl.sources import reading
from howdah.etl.sources import source as sources
from howdah.etl.write import shards
from howdah.training.optim.schedule import Schedule
from howdah.yarn.preflight import ports


def choices(model: type[Section], name: str) -> tuple[str, ...]:
    annotation = model.model_fields[name].annotation
    assert get_origin(annotation) is Literal
    return get_args(annotation)


def lr(choice: Any) -> float:
    return Schedule(peak=1.0, steps=10, warmup=0, decay=choice).lr(5)


def ports_needed(choice: Any) -> int:
    options = JobSection().model_copy(update={"controller": choice})
    return ports.most_ports(options, 4, 2, driver=False)


@pytest.mark.parametrize(
    ("use", "names"),
    [
        (lr, choices(TrainingSection, "lr_scheduler_type")),
        (
            lambda choice: pad_multiple(False, choice),
            set(choices(TrainingSection, "precision")) - {"auto"},
        ),
        (
            lambda choice: shards.balance_goal(choice, 1.0, {0: 4, 1: 2}),
            set(choices(DataSection, "balance")) - {"none"},
        ),
        (ports_needed, choices(JobSection, "controller")),
    ],
    ids=["lr", "precision", "balance", "controller"],
)
def test_each_choice_is_handled_and_an_unknown_one_is_an_error(use, names):
    for choice in names:
        use(choice)
    with pytest.raises((KeyError, ValueError)):
        use("another")


def test_each_kind_of_source_is_read_by_its_own_reader():
    # data/spark/text_rows.py, etl/write/adopt.py, etl/sources/images.py
    others = {"csv", "jsonl", "tfrecord", "image"}
    assert set(reading._TABLES) | others == set(get_args(sources.Kind))
    assert set(choices(DataSection, "format")) == {"auto", *get_args(sources.Kind)}


def test_each_default_is_one_of_its_choices():
    def all_of(model: type[Section]):
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                yield from all_of(field.annotation)
            elif get_origin(field.annotation) is Literal:
                yield name, field.default, get_args(field.annotation)

    defaults = list(all_of(Config))
    assert len(defaults) > 10 and all(default in names for _, default, names in defaults)
