"""Recognises secrets in a configuration or a text, and removes them from all that is shown.

More users can read a run directory, a dataset or an MLflow server than a configuration. So
config.yaml, report.html, meta.json, manifests, statuses, logs and error messages show a
configuration without its secrets. They stay only where they are used: in the private file that
ranks read, in the one that containers get, and in Spark's settings. A secret is recognised by its
name or form: one under another name (`data.spark.conf: {my.thing: hunter2}`) is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "LEFT_OUT", "config", "find", "is_secret_name", "left_out", "left_out_of", "plain", "text",
]  # fmt: skip

LEFT_OUT = "***left-out***"
"""Replaces a secret."""

NAMES_ARE_DATA = frozenset({"data.labels", "data.partitions", "gate.minimum"})
"""Mappings whose keys are data: a label may be called `password`."""

_WORDS = (
    r"pass(?:word|wd|phrase)|pwd|secret(?:[._-]?(?:key|access[._-]?key))?|access[._-]?key"
    r"|private[._-]?key|encryption[._-]?key|account[._-]?key|shared[._-]?access[._-]?key"
    r"|shared[._-]?access[._-]?signature|api[._-]?key|credentials?|connection[._-]?string|webhook"
)
_NAME = re.compile(rf"(?:{_WORDS}|(?:^|[._-])(?:token|sas|pw))$", re.IGNORECASE)
_CAMEL_TOKEN = re.compile(r"[a-z](?:Token|Secret)$")
_ACCOUNT = re.compile(
    r"(?:^|\.)fs\.azure\.(?:account\.key|sas|account\.oauth2\.client\.secret)\."
    r"|\.server-side-encryption\.key$",
    re.IGNORECASE,
)
"""Azure's name ends with the account, or with container and account."""

# The password of a URL's user; digits up to a slash are a port. A password without slashes extends
# to the last '@' before the path, one with slashes (as in AWS keys) to the first.
_URL = re.compile(r"(://[^/@\s:\[]*:)(?!\d+(?:[/?#,]|$))(?:[^/?#\s]+|[^@\s]+)(?=@)")
_ORACLE = re.compile(r"(jdbc:oracle:\w+:[^/\s@]+/)([^@\s]+)(?=@)", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?P<name>(?:^|(?<=[?&;,\s({{\"']))(?:-D)?[\w.-]*?(?:{_WORDS}|(?<![a-z])(?:token|sig|sas))"
    r"(?:[\"']?\s*=\s*|[\"']\s*:\s*(?=[\"'])))(?:\"[^\"]*\"|'[^']*'|[^&;,\s)\"']+)",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
"""Tokens with a recognisable form: Hugging Face's, GitHub's, GitLab's, JSON Web Tokens."""


def is_secret_name(name: str) -> bool:
    """Whether a setting or environment variable of this name is a secret.

    >>> is_secret_name("fs.azure.account.key.me.dfs.core.windows.net"), is_secret_name("HF_TOKEN")
    (True, True)
    >>> is_secret_name("TOKENIZERS_PARALLELISM"), is_secret_name("spark.yarn.keytab")
    (False, False)
    """
    if name.upper() in ("PWD", "OLDPWD"):  # the shell's working directories
        return False
    return any(pattern.search(name) for pattern in (_NAME, _CAMEL_TOKEN, _ACCOUNT))


def text(value: str) -> str:
    """A text without its secrets: passwords in URLs, `password=...`, signatures, tokens.

    >>> text("https://bot:pw@mlflow:5000 and jdbc:mysql://db:3306/x?user=a&password=pw&ssl=true")
    'https://bot:***left-out***@mlflow:5000 and jdbc:mysql://db:3306/x?user=a&password=***left-out***&ssl=true'
    """
    value = _URL.sub(rf"\g<1>{LEFT_OUT}", value)
    value = _ORACLE.sub(rf"\g<1>{LEFT_OUT}", value)
    value = _PAIR.sub(rf"\g<name>{LEFT_OUT}", value)
    return _TOKEN.sub(LEFT_OUT, value)


def plain(value: Any, name: str = "", *, names: bool = True) -> Any:
    """Plain data (mappings, lists, strings) without its secrets, also those under a secret's name.

    Args:
        name: the key of `value` in the configuration; "" for the whole configuration.
        names: the keys are names of settings; False: they are data (columns).
    """
    if name in NAMES_ARE_DATA:
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {
            key: LEFT_OUT
            if names and _is_value(item) and is_secret_name(str(key))
            else plain(item, f"{name}.{key}" if name else str(key), names=names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item, name, names=names) for item in value]
    return value


def _is_value(item: Any) -> bool:
    """Whether an item can be a secret: not empty, a switch or a section."""
    return not isinstance(item, bool | Mapping | list) and item not in (None, "")


def find(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """(key, kind) of every secret in a configuration's value, without the secret itself.

    Args:
        name: the value's key.
    """
    if name in NAMES_ARE_DATA:
        return
    if isinstance(value, str):
        if _URL.search(value) or _ORACLE.search(value):
            yield name, "a password in a URL"
        elif text(value) != value:
            yield name, "a secret in a text"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{name}.{key}" if name else str(key)
            if _is_value(item) and is_secret_name(str(key)):
                yield path, "a secret"
            else:
                yield from find(path, item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from find(f"{name}.{number}", item)


def config(given: BaseModel) -> BaseModel:
    """A configuration without its secrets, to be saved or shown; the same object if it has none."""
    values = given.model_dump(mode="json")
    redacted = plain(values)
    return given if redacted == values else type(given).model_validate(redacted)


def left_out(given: BaseModel) -> list[str]:
    """The keys of a saved configuration whose secrets were removed."""
    return list(left_out_of(given.model_dump(mode="json")))


def left_out_of(value: Any, name: str = "") -> Iterator[str]:
    """The same of plain data.

    Args:
        name: the key of `value`; "" for the whole configuration.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from left_out_of(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for item in value:
            yield from left_out_of(item, name)
    elif isinstance(value, str) and LEFT_OUT in value:
        yield name
