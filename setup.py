"""Packages of the wheel: `howdah`, and the rooms that lie beside it as `howdah.ROOM`.

All else about the project is in pyproject.toml, which cannot compute names.
"""

from setuptools import find_packages, setup

ROOMS = ("cli", "data", "etl", "jobs", "models", "serving", "training", "tuning", "yarn")


def _packages(folder: str, name: str) -> list[str]:
    return [name, *(f"{name}.{package}" for package in find_packages(folder))]


setup(
    packages=_packages("howdah", "howdah")
    + [package for room in ROOMS for package in _packages(room, f"howdah.{room}")],
    package_dir={f"howdah.{room}": room for room in ROOMS},
)
