"""Labels as a source writes them."""

import pytest

from howdah.data.targets import label_set


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '["a"', '[["a"]]', "[true]", "[1.5]", '["a", " "]']
)
def test_what_is_not_a_list_of_labels_has_none(text):
    assert label_set(text, ",") is None
