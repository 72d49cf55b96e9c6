"""Frameworks or carriers of a test: one in every run, the others in `make test-all`."""

import pytest


def either(by_default: str, others: tuple[str, ...] = ("tensorflow", "torch")) -> list:
    """One by default; the others in `make test-all`."""
    more = [pytest.param(name, marks=pytest.mark.full) for name in others if name != by_default]
    return [by_default, *more]
