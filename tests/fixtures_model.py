"""Fixtures of the tiny model (tests/tiny_model.py)."""

from __future__ import annotations

import pytest

from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory) -> str:
    """A tiny DistilBERT directory for the whole session: read it, never write to it."""
    return write_tiny_model(str(tmp_path_factory.mktemp("tiny") / "model"))
