"""What the pages name exists: tests, links, files, modules, commands, keys."""

import re
from pathlib import Path

import pytest
import typer

import howdah
from howdah.cli import app
from howdah.config.loader import keys
from tests import ROOT

FOLDERS = (".", "docs", "docs/decisions", "docs/ideas", "docs/lessons", "examples")
PAGES = [page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md")]
_TEST = re.compile(r"(?<![\w/])(?:tests/)?((?:\w+/)*test_[a-z0-9_]+\.py)\b")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_ROOM = rf"(?:howdah|{'|'.join(howdah.ROOMS)}|dags|bench|tools|tests)"
_FILE = re.compile(rf"(?<![\w/.-])({_ROOM}/(?:[\w-]+/)*[\w-]+\.(?:py|sh))\b")
_FOLDER = re.compile(rf"`({_ROOM}(?:/[\w-]+)*/)`")
_MODULE = re.compile(rf"python -m ({_ROOM}(?:\.\w+)*)")
_TARGET = re.compile(r"^(?:`|- )?make ([a-z-]+)|`make ([a-z-]+)", re.MULTILINE)
_COMMAND = re.compile(r"^howdah ([a-z]+)|`howdah ([a-z]+)", re.MULTILINE)
_KEY = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)`")
_ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
_FILES = (".npz", ".py", ".json", ".yaml", ".html", ".onnx", ".safetensors")
_OTHERS = {"ray.kill", "ray.shutdown", "yarn.acl.enable", "yarn.resourcemanager.webapp.address"}
"""What is called likewise elsewhere: functions of Ray, properties of Hadoop."""
_REFUSED = {"data.replay"}
"""Keys that a decision names because they are not there."""
_WRITTEN = {"bench/results/"}
"""What commands make; not in the repository."""
_COMMANDS = set(typer.main.get_command(app).commands)
_HISTORY = {"CHANGELOG.md"}
"""Its entries name what was there at their time."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tests_and_links_of_a_page_exist(page):
    text = page.read_text()
    missing = {name for name in _TEST.findall(text) if not (ROOT / "tests" / name).exists()}
    for target in _LINK.findall(text):
        if "://" not in target and not (page.parent / target).exists():
            missing.add(target)
    assert not missing


def modules(name: str) -> list[Path]:
    """Where a module that `python -m` runs may lie."""
    paths = [ROOT.joinpath(*each.split(".")) for each in (name, name.removeprefix("howdah."))]
    return [file for path in paths for file in (path.with_suffix(".py"), path / "__main__.py")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in _HISTORY], ids=lambda path: path.name
)
def test_code_that_a_page_names_exists(page):
    text = page.read_text()
    named = {*_FILE.findall(text), *_FOLDER.findall(text)} - _WRITTEN
    missing = {path for path in named if not (ROOT / path).exists()}
    missing |= {
        name for name in _MODULE.findall(text) if not any(path.exists() for path in modules(name))
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_that_a_page_names_exist(page):
    text = page.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {a or b for a, b in _TARGET.findall(text)} <= targets
    assert {a or b for a, b in _COMMAND.findall(text)} <= _COMMANDS


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in _HISTORY], ids=lambda path: path.name
)
def test_keys_that_a_page_names_exist(page):
    key_names = {name for name, _ in keys()}
    sections = {
        name.rsplit(".", depth)[0] for name in key_names for depth in range(1, name.count(".") + 1)
    }
    roots = {name.split(".")[0] for name in key_names}
    named = {key for key in _KEY.findall(page.read_text()) if key.split(".")[0] in roots}
    named = {key for key in named if not key.endswith(_FILES)} - _OTHERS - _REFUSED
    modules_of = {key for key in named if (ROOT / Path(*key.split(".")[:2])).exists()}
    assert named - modules_of <= key_names | sections


def heading_anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may end with."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_headings_that_a_page_links_to_exist(page):
    links = [link for link in _ANCHOR.findall(page.read_text()) if "://" not in link[0]]
    assert all(
        anchor in heading_anchors(page.parent / target if target else page)
        for target, anchor in links
    ), links


def test_the_map_can_be_read_at_one_sitting():
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) <= 180
