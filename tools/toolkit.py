"""Shared parts of the set-up tools: clear failures, logged commands, locks, pip's settings, uv.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from howdah.core import cache as howdah_cache  # noqa: E402 - it needs the standard library alone

UV_REQUIREMENTS = ROOT / "tools" / "uv-requirements.txt"
LOG_TAIL_LINES = 25


class SetupError(Exception):
    """A step that has failed, with its remedy.

    Args:
        what: the problem, in one sentence or a few lines.
        remedy: what to do next.
        log: file with the whole output of the failed command; its tail is shown.
    """

    def __init__(self, what: str, *, remedy: str | None = None, log: Path | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.log = log

    def render(self) -> str:
        """The text for the terminal."""
        lines = [f"error: {self.what}"]
        if self.log is not None and self.log.is_file():
            text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            lines += ["  | " + line for line in text[-LOG_TAIL_LINES:]]
            lines.append(f"  whole log: {self.log}")
        if self.remedy:
            lines.append("  remedy: " + self.remedy.replace("\n", "\n          "))
        return "\n".join(lines)


def say(text: str) -> None:
    """One line of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def guarded(main: Callable[[], None]) -> int:
    """Run a tool's `main`; return its exit code: 0, 1 after a failure, 130 after Ctrl-C.

    SIGTERM unwinds like an interrupt, so that the running command is ended as well.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except SetupError as error:
        say(error.render())
        return 1
    except OSError as error:  # a folder that another user, such as root, has made; a full disk
        say(f"error: {error}\n  remedy: have {ROOT} and {cache_root()} writable, with space left")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run again to continue")
        return 130
    return 0


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Context that announces a step and prints the seconds that it took."""
    say(f"==> {title}")
    started = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - started:.1f} s")


def cache_root() -> Path:
    """Howdah's cache, which keeps wheels and the installer between set-ups."""
    return Path(howdah_cache.cache_root())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_logged(
    argv: Sequence[str | Path],
    log: Path,
    *,
    what: str,
    remedy: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command with its whole output in `log`; return that output.

    A line of progress is printed every 30 s.

    Raises:
        SetupError: the command is missing or failed; with the tail of the log.
    """
    argv = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                process_group=0,  # so that its compilers end with it
            )
        except OSError as error:
            raise SetupError(f"{what}: cannot start {argv[0]}: {error}", remedy=remedy) from error
        try:
            while True:
                try:
                    code = process.wait(timeout=30)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    say(f"    ... {what}{_percent(log)}, {seconds:.0f} s so far (log: {log})")
        except BaseException:
            # Not permitted below sudo: what runs as root is waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code != 0:
        raise SetupError(f"{what}: {Path(argv[0]).name} ended with {code}", remedy=remedy, log=log)
    return log.read_text(encoding="utf-8", errors="replace")


def _percent(log: Path) -> str:
    """The progress that make prints in a log, its last `[ 45%]`; empty without one."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 65536))
        percents = re.findall(rb"^\[ *(\d+)%\]", file.read(), re.MULTILINE)
    return f" {int(percents[-1])} %" if percents else ""


def output_of(argv: Sequence[str | Path], *, timeout: float = 60) -> str | None:
    """A command's output in English (stdout, or else stderr); None if it is missing or fails."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # apt-cache and others translate what is looked for
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else None


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Context that holds a lock file: a second process prints that it waits for the first.

    The kernel releases the lock (flock) when its process ends in any way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"{what} is already running (process {file.read().strip() or '?'}): waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


# --------------------------------------------------------------------------- pip's settings for uv
def parse_pip_config(text: str) -> dict[str, str]:
    """`pip config list` as {option: value}, in pip's order of precedence.

    >>> parse_pip_config("global.index-url='https://a/simple'\\n:env:.index-url='https://b/simple'")
    {'index-url': 'https://b/simple'}
    """
    ranks = {"global": 0, "install": 1, "download": 1, ":env:": 2}
    values: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(global|install|download|:env:)\.([a-z-]+)=(.*)", line.strip())
        if not match:
            continue
        section, option, literal = match.groups()
        try:
            value = str(literal_eval(literal))
        except (ValueError, SyntaxError):
            value = literal
        if option not in values or ranks[section] >= values[option][0]:
            values[option] = (ranks[section], value)
    return {option: value for option, (_, value) in values.items()}


def uv_settings(pip: Mapping[str, str], env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """uv's environment and flags for the user's pip settings; settings for uv itself win.

    Args:
        pip: option -> value, the result of `parse_pip_config`.
        env: the environment of this process.
    """
    out: dict[str, str] = {}

    def put(name: str, value: str, *others: str) -> None:
        if not any(env.get(variable) for variable in (name, *others)):
            out[name] = value

    if pip.get("index-url"):
        put("UV_DEFAULT_INDEX", pip["index-url"], "UV_INDEX_URL")
    if pip.get("extra-index-url"):
        put("UV_INDEX", " ".join(pip["extra-index-url"].split()), "UV_EXTRA_INDEX_URL")
        # pip takes the best version of all its indexes; every file is checked by its hash anyway.
        put("UV_INDEX_STRATEGY", "unsafe-best-match")
    links = [
        link for link in pip.get("find-links", "").split() if "://" in link or os.path.isdir(link)
    ]
    if links:
        put("UV_FIND_LINKS", ",".join(links))
    if pip.get("cert"):
        put("SSL_CERT_FILE", pip["cert"])
    if pip.get("client-cert"):
        put("SSL_CLIENT_CERT", pip["client-cert"])
    if pip.get("trusted-host"):
        put("UV_INSECURE_HOST", " ".join(pip["trusted-host"].split()))
    for option in ("timeout", "default-timeout"):
        if pip.get(option, "").split(".")[0].isdigit():
            put("UV_HTTP_TIMEOUT", pip[option].split(".")[0])
    if pip.get("proxy"):
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            put(name, pip["proxy"], name.lower(), "ALL_PROXY", "all_proxy")
    flags = ["--no-index"] if pip.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    return out, flags


class Installer:
    """uv, pinned and checked by hash, in its own small environment in the cache.

    Args:
        python: the interpreter that the virtual environment is for.
        logs: directory for logs.
    """

    def __init__(self, python: str, logs: Path) -> None:
        self.python = python
        self.logs = logs
        version = re.search(r"^uv==([\w.]+)", UV_REQUIREMENTS.read_text(), re.MULTILINE)
        if version is None:
            raise SetupError(f"{UV_REQUIREMENTS} names no uv version", remedy="git checkout it")
        self.version = version.group(1)
        self.home = cache_root() / f"uv-{self.version}"
        self.uv = self.home / "bin" / "uv"
        self.pip = [str(self.home / "bin" / "python"), "-m", "pip"]

    def ready(self) -> None:
        """Install uv unless it is installed and starts."""
        # pip must start too: it fetches Horovod's source, and its interpreter may be gone.
        if f" {self.version}" in (output_of([self.uv, "--version"]) or "") and output_of(
            [*self.pip, "--version"]
        ):
            return
        with exclusive(cache_root() / "uv.lock", "the installer's set-up"):
            run_logged(
                [self.python, "-m", "venv", "--clear", self.home],
                self.logs / "uv-venv.log",
                what="creating the installer's environment",
                remedy=f"needs the venv module of {self.python} (Debian: python3-venv) and a "
                f"writable {cache_root()} (or set HOWDAH_CACHE)",
            )
            run_logged(
                [
                    *self.pip, "install", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                    "-r", UV_REQUIREMENTS,
                ],
                self.logs / "uv-install.log",
                what="installing uv",
                remedy="pip must reach a package index: check `pip config list` (index-url, cert, "
                "proxy); with a mirror, set PIP_INDEX_URL",
            )  # fmt: skip

    def run(
        self, arguments: Sequence[str | Path], log: str, *, what: str, remedy: str | None
    ) -> str:
        """Run `uv <arguments>` under the user's pip settings, logged."""
        pip = parse_pip_config(output_of([*self.pip, "config", "list"]) or "")
        extra, flags = uv_settings(pip, os.environ)
        env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", **extra}
        env.pop("VIRTUAL_ENV", None)  # an environment active in the user's shell is not ours
        argv = [self.uv, *arguments, *flags]
        return run_logged(argv, self.logs / log, what=what, remedy=remedy, env=env)
