"""Recognises secrets in a configuration or a text, and removes them from all that is shown.

More users can read a run directory, a dataset or an MLflow server than a configuration. So
config.yaml, report.html, meta.json, manifests, statuses, logs and error messages show a
configuration without its secrets. They stay only where they are used: in the private file that
ranks read, in the one that containers get, and in Spark's settings. A secret is recognised by its
name or form: one under another name (`data.spark.conf: {my.thing: hunter2}`) is not.

Every error text, alert and line of progress passes here, also texts that strangers send. Each rule
takes time in proportion to the text: a rule's repetitions are bounded, or nothing follows them that
could fail. Texts are not cut first: the password of a URL is known by the `@` behind it, and a cut
between them would show the password's beginning.

The forms of tokens are those of gitleaks' rules (github.com/gitleaks/gitleaks), under its names.
They are a table here because gitleaks is a program in Go, and detect-secrets, whose last release is
of 2024, reports lines of source code and does not say which part of a line is secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

LEFT_OUT = "***left-out***"
"""Replaces a secret."""

NAMES_ARE_DATA = frozenset({"data.labels", "data.partitions", "gate.minimum"})
"""Mappings whose keys are data: a label may be called `password`."""

# ------------------------------------------------------------------------------------- by name
_PASSWORDS = (
    r"pass(?:word|wd|phrase)|pwd|secret(?:[._-]?(?:key|access[._-]?key))?|access[._-]?key"
    r"|private[._-]?key|encryption[._-]?key|account[._-]?key|shared[._-]?access[._-]?key"
    r"|shared[._-]?access[._-]?signature|api[._-]?key"
)
_WORDS = rf"{_PASSWORDS}|credentials?|connection[._-]?string|webhook"
_NAME = re.compile(
    rf"(?:{_WORDS}|[._-]pass|(?<!security\.)authorization|(?:^|[._-])(?:token|sas|pw))$",
    re.IGNORECASE,
)
_CAMEL_TOKEN = re.compile(r"[a-z](?:Token|Secret)$")
_ACCOUNT = re.compile(
    r"(?:^|\.)fs\.azure\.(?:account\.key|sas|account\.oauth2\.client\.secret)\."
    r"|\.server-side-encryption\.key$",
    re.IGNORECASE,
)
"""Azure's name ends with the account, or with container and account."""

_QUOTED = r"\"[^\"]*\"?|'[^']*'?"
_VALUE = rf"(?!(?:null|none|true|false)\b)(?:{_QUOTED}|\{{(?:[^}}]|\}}\}})*\}}?|[^&;,\s)\"'}}\]]+)"
"""A value: in quotes, in the braces of SQL Server's driver, or up to a separator."""
_IS = r"\\?[\"']?[ \t]{0,3}=[ \t]{0,3}\\?|\\?[\"'][ \t]{0,3}:[ \t]{0,3}\\?(?=[\"'])"
"""Between a name and its value: `=`, or the colon of JSON."""
_START = r"(?:^|(?<=[?&;,\s({\"']))[\w.-]{0,128}?(?<![a-z])"
"""Before words that are also parts of paths: `/data/token=abc/` is a partition."""
_PAIRS = re.compile(
    rf"(?P<name>(?:(?:{_WORDS}|[._-]pass)|{_START}(?:token|delegation|sig|sas))(?:{_IS})){_VALUE}",
    re.IGNORECASE,
)
_COLON = re.compile(rf"(?P<name>(?:{_PASSWORDS})[ \t]{{0,3}}:[ \t]{{0,3}}){_VALUE}", re.IGNORECASE)
"""The form of YAML and of HTTP headers: `password: x`, `X-Api-Key: x`."""
_OPTION = re.compile(
    rf"(?P<name>(?<![\w-])--(?:[a-z]{{1,20}}-){{0,3}}(?:{_PASSWORDS}|token)[ \t]+)(?!-){_VALUE}",
    re.IGNORECASE,
)
"""An option of a command: `--password x`."""
_HEAD = re.compile(
    r"(?P<name>authorization\\?[\"']?[ \t]{0,3}[:=][ \t]{0,3}(?:\\?[\"'])?)"
    r"(?:(?:basic|bearer|digest|negotiate|token|apikey)[ \t]{1,3})?[^\s\"',\\]+",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(?P<name>\b(?:bearer|basic)[ \t]{1,3})(?=[\w.~+/-]{0,200}?\d|[\w.~+/-]{24})[\w.~+/=-]{8,}",
    re.IGNORECASE,
)
"""A header's value without its name; a word such as `authentication` has no digit."""

# ------------------------------------------------------------------------------------- by form
TOKENS = {
    "aws-access-token": r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    "anthropic and openai": r"\bsk-[A-Za-z0-9_-]{20,}",
    "age-secret-key": r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}",
    "databricks-api-token": r"\bdapi[a-f0-9]{32}(?:-\d)?\b",
    "digitalocean-pat": r"\bdo[opr]_v1_[a-f0-9]{64}\b",
    "discord-webhook": r"https://(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks/[^\s\"'<>]+",
    "gcp-api-key": r"\bAIza[\w-]{35}",
    "github": r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
    "gitlab": r"\bgl(?:pat|dt|ptt|rt|soat|ft|agent|cbt|imt)-[\w-]{20,}",
    "google chat webhook": r"https://chat\.googleapis\.com/v1/spaces/[^\s\"'<>]+",
    "grafana": r"\bgl(?:sa|c)_[A-Za-z0-9+/_]{32,}",
    "hashicorp vault": r"\bhv[sb]\.[\w-]{24,}",
    "huggingface-access-token": r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "jwt": r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}",
    "microsoft-teams-webhook": r"https://[\w-]{1,63}\.webhook\.office\.com/[^\s\"'<>]+",
    "npm-access-token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "pypi-upload-token": r"\bpypi-AgE[\w-]{50,}",
    "sendgrid-api-token": r"\bSG\.[\w-]{20,24}\.[\w-]{39,50}",
    "slack": r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-\d-[\w-]{10,}",
    "slack-webhook-url": (
        r"(?:https?://)?hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[^\s\"'<>]+"
    ),
    "stripe-access-token": r"\b[sr]k_(?:live|test|prod)_[A-Za-z0-9]{10,}",
    "telegram-bot-api-token": r"\b\d{8,10}:AA[\w-]{33}",
    "twilio-api-key": r"\bSK[a-f0-9]{32}\b",
}  # fmt: skip
"""Tokens with a form of their own: {gitleaks' name of the rule: regular expression}."""
_TOKENS = re.compile("|".join(TOKENS.values()))

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

# -------------------------------------------------------------------------------------- in URLs
_WORD = re.compile(r"\S+")
_AUTHORITY_ENDS = re.compile(r"[/?#]")
_PORT = re.compile(r"\d+(?:,.*)?")
_ORACLE = re.compile(r"(jdbc:oracle:\w{1,20}:[^/\s@]{1,128}/)[^@\s]{1,1024}(?=@)", re.IGNORECASE)
_DRIVER = re.compile(r"jdbc:([a-z][\w+.-]{0,40}):(?://[\w.\[\]:,-]{1,512})?", re.IGNORECASE)
_DRIVERS = frozenset({
    "postgresql", "mysql", "mariadb", "oracle", "sqlserver", "db2", "teradata", "hive2", "sqlite",
    "h2", "snowflake", "redshift", "trino", "presto", "clickhouse", "derby", "sap", "vertica",
})  # fmt: skip
"""Drivers of JDBC whose URLs name their passwords; for all others, what follows the host is left
out."""


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
    """A text without its secrets: passwords in URLs, `password=...`, signatures, tokens, keys.

    >>> text("https://bot:pw@mlflow:5000 and jdbc:mysql://db:3306/x?user=a&password=pw&ssl=true")
    'https://bot:***left-out***@mlflow:5000 and jdbc:mysql://db:3306/x?user=a&password=***left-out***&ssl=true'
    """
    value = _urls(_without_keys(value))
    for pattern in (_HEAD, _BEARER, _PAIRS, _COLON, _OPTION):
        value = pattern.sub(rf"\g<name>{LEFT_OUT}", value)
    return _TOKENS.sub(LEFT_OUT, value)


def _without_keys(value: str) -> str:
    """The text without private keys in PEM; one without an end is left out up to the text's end."""
    parts, at = [], 0
    while (begins := _KEY_BEGINS.search(value, at)) is not None:
        parts += [value[at : begins.start()], LEFT_OUT]
        ends = _KEY_ENDS.search(value, begins.end())
        at = len(value) if ends is None else ends.end()
    return "".join([*parts, value[at:]])


def _urls(value: str) -> str:
    """The text without the passwords of its URLs."""
    if "://" not in value and "jdbc:" not in value.lower():
        return value
    return _WORD.sub(lambda match: _url(match[0]), value)


def _url(word: str) -> str:
    """A word without the passwords of the URLs in it.

    The password of a URL's user extends to the last `@` of the authority, which ends at the first
    `/`, `?` or `#`. Where the authority has none, the password may have slashes itself (AWS keys
    do) and extends to the first `@` behind. Digits alone behind the colon are a port.
    """
    parts, at, last = [], 0, word.rfind("@")
    while last > at and (scheme := word.find("://", at)) != -1:
        begins = scheme + 3
        slash = _AUTHORITY_ENDS.search(word, begins)
        ends = len(word) if slash is None else slash.start()
        sign = word.rfind("@", begins, ends)
        colon = word.find(":", begins, ends if sign == -1 else sign)
        to = sign
        if sign == -1 and colon != -1 and not _PORT.fullmatch(word, colon + 1, ends):
            to = word.find("@", ends) if last > ends else -1
        if colon == -1 or to <= colon + 1 or word[begins] == "[":
            parts.append(word[at:ends])
            at = ends
            continue
        parts += [word[at : colon + 1], LEFT_OUT]
        at = to
    word = "".join([*parts, word[at:]])
    if "jdbc:" in word.lower():
        word = _ORACLE.sub(rf"\g<1>{LEFT_OUT}", word)
        driver = _DRIVER.search(word)
        if driver is not None and driver[1].lower() not in _DRIVERS and driver.end() < len(word):
            word = word[: driver.end()] + LEFT_OUT
    return word


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
        if _urls(value) != value:
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


def config(settings: BaseModel) -> BaseModel:
    """A configuration without its secrets, to be saved or shown; the same object if it has none."""
    values = settings.model_dump(mode="json")
    redacted = plain(values)
    return settings if redacted == values else type(settings).model_validate(redacted)


def left_out(settings: BaseModel) -> list[str]:
    """The keys of a saved configuration whose secrets were removed."""
    return list(left_out_of(settings.model_dump(mode="json")))


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
