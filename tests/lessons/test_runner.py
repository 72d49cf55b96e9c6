"""The runner of the lessons, on lessons that it has not seen: what is a figure, what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from howdah.core.processes import process_start
from howdah.errors import ConfigError, DataError
from tests.support.waiting import wait_until
from tools.demo.steps import guarded
from tools.lessons import __main__ as command
from tools.lessons import lesson, page

README = """# 03. Is the sum of two parts the whole?

It is, for *some* wholes: see [the other](../04-x/README.md).

## Run

```sh
python parts.py $TEXTS 'two words'
python parts.py $TEXTS again
```

## What one concludes

The whole is **more** <than> its parts.
"""
SCRIPT = """import subprocess, sys
print("what came:", *sys.argv[1:])
print("bytes a rank, 4 ranks = 1,024 bytes")
print("a sum == 3, and a = b = c says nothing")
print("loss = -0.5")
print("[0]<stdout>:rate = 1.5e-05 1/s")
child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, start_new_session=True)
open("child", "a").write(f"{child.pid}\\n")
open("ring.svg", "w").write("<svg xmlns='http://www.w3.org/2000/svg'/>")
sys.exit(sys.argv[2] == "again" and 3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    place = tmp_path / "lessons" / "03-parts"
    place.mkdir(parents=True)
    (place / "README.md").write_text(README)
    (place / "parts.py").write_text(SCRIPT)
    monkeypatch.setattr(lesson, "FOLDER", place.parent)
    return place


def test_a_lesson_is_run_and_shown(folder, tmp_path):
    """Words, figures, the picture, the command that fails; and no process is left."""
    (one,) = lesson.lessons()
    place = tmp_path / "out" / folder.name
    result = lesson.run(one, place, {**os.environ, "TEXTS": "/some texts"})
    assert "what came: /some texts two words" in result.output
    assert result.figures == {
        "bytes a rank, 4 ranks": ("1,024", "bytes"),
        "loss": ("-0.5", ""),
        "rate": ("1.5e-05", "1/s"),
    }
    assert result.failed == f"python {folder / 'parts.py'} '/some texts' again: exit code 3"
    assert [path.name for path in result.pictures] == ["ring.svg"]
    left = [int(pid) for pid in (place / "child").read_text().split()]
    assert len(left) == 2 and [process_start(pid) for pid in left] == [None, None]

    page.save(result, place)
    html = page.write(place.parent).read_text()
    assert "Is the sum of two parts the whole?" in html and "0 of 1 lessons ended well" in html
    assert "It is, for <em>some</em> wholes: see the other." in html
    assert (
        "<pre>python parts.py $TEXTS &#39;two words&#39;" in html
        and "data:image/svg+xml;base64," in html
    )
    assert 'href="../lessons/03-parts/README.md"' in html and "exit code 3" in html


def test_a_run_begins_in_an_empty_directory(folder, tmp_path):
    (one,) = lesson.lessons()
    place = tmp_path / "out"
    (place / "run" / "checkpoints").mkdir(parents=True)
    (place / "old.svg").touch()
    (folder / "parts.py").write_text("print('n = 1')")
    result = lesson.run(one, place, {**os.environ, "TEXTS": ""})
    assert (result.figures, result.pictures, result.failed) == ({"n": ("1", "")}, [], "")
    assert sorted(path.name for path in place.iterdir()) == ["errors.txt", "output.txt"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_lesson_leaves_no_process(folder, tmp_path, number, code):
    """A signal reaches the runner while a command runs, as from Ctrl-C or `timeout`."""
    (folder / "parts.py").write_text("open('pid', 'w').write(str(__import__('os').getpid()))\n"
                                     "__import__('time').sleep(1000)")  # fmt: skip
    runner = os.fork()
    if not runner:
        ended = 1
        try:
            one, environ = lesson.lessons()[0], {**os.environ, "TEXTS": ""}
            ended = guarded(lambda: lesson.run(one, tmp_path / "out", environ))
        except SystemExit as stopped:
            ended = stopped.code
        finally:
            os._exit(ended)
    pid = tmp_path / "out" / "pid"
    wait_until(lambda: pid.exists() and pid.read_text())
    os.kill(runner, number)
    assert os.waitstatus_to_exitcode(os.waitpid(runner, 0)[1]) == code
    assert process_start(int(pid.read_text())) is None


def test_what_is_missing_is_named(folder):
    with pytest.raises(ConfigError) as caught:
        command.chosen(["9"])
    assert caught.value.expected == "one of 03"
    (folder / "README.md").write_text("# 03. Nothing\n")
    with pytest.raises(DataError) as lacks:
        lesson.lessons()[0].commands({})
    assert lacks.value.where == str(folder / "README.md")


@pytest.mark.parametrize("one", lesson.lessons(), ids=lambda one: one.folder.name)
def test_every_lesson_can_be_read(one):
    """Its sections, its commands' files, its links, and at most 120 lines a script."""
    names = dict.fromkeys(("TEXTS", "MODEL"), "x")
    for words in one.commands(names):
        assert any(Path(word).parent == one.folder for word in words), words
    for name in ("", "What it shows", "What one concludes", "In Howdah"):
        assert one.section(name), name
    for script in one.folder.glob("*.py"):
        assert len(script.read_text().splitlines()) <= 120, script
    for link in lesson.links(one.text):
        assert (one.folder / link).exists(), link
