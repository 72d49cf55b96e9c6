"""Keys of the configuration that go with data.kind: image."""

from __future__ import annotations

import pytest

from howdah.config.loader import from_dict
from howdah.errors import ConfigError

TORCH = {"framework": "torch"}


def test_images_take_their_own_keys_and_every_default():
    data = {"kind": "image", "columns": {"image": "picture"}}
    config = from_dict({"data": data, "training": TORCH})
    again = from_dict(config.model_dump(mode="json"))  # as the form sends it: every key
    assert again == config and again.data.columns.image == "picture"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"kind": "image"}}, "set training.framework to torch"),
        ({"data": {"kind": "image", "max_length": 64}, "training": TORCH}, "data.max_length"),
        (
            {"data": {"kind": "image", "clean": {"html_tags": True}}, "training": TORCH},
            "data.clean",
        ),
        ({"data": {"kind": "image", "format": "csv"}, "training": TORCH}, "not for images"),
        ({"data": {"format": "image"}}, "needs data.kind: image"),
        (
            {"data": {"kind": "image"}, "training": TORCH, "gate": {"min_over_baseline": 0.0}},
            "gate.min_over_baseline is for texts",
        ),
    ],
)
def test_what_does_not_go_with_the_kind_is_refused(sections, message):
    with pytest.raises(ConfigError) as caught:
        from_dict(sections)
    assert message in "\n".join(problem.what for problem in caught.value.problems)
