"""Where a model's server on a cluster listens: a small file that clients read.

    <publish.directory>/<name>/server.json     {"value": "{...}", "seals": ["..."]}

Who may write to the model's directory could write another address there, and clients would send
their texts and the token to it. So the file is signed with each of the server's tokens; a client
holds one. The seal has no time: a file that an earlier container of the same tokens has sealed can
be put back by a writer of the directory (SECURITY.md).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass

from howdah import storage
from howdah.errors import ModelError

FILE = "server.json"
TOKENS = ".howdah.tokens"
"""Name of the file with the server's tokens in its container's working directory."""
MODEL_VARIABLE = "HOWDAH_SERVE_MODEL"
"""Variable of the container: the model's path."""
ADDRESS_VARIABLE = "HOWDAH_SERVE_FILE"
"""Variable of the container: where the address is written."""
_URL = re.compile(r"http://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_SUBJECT = b"howdah server address\n"


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """What the file says."""

    url: str
    """http://host:port."""
    application: str
    container: str
    started: float
    """Seconds since 1970."""


def path_of(model_directory: str) -> str:
    """The file of a published model."""
    return storage.join(model_directory, FILE)


def write(path: str, address: ServerAddress, tokens: list[bytes]) -> None:
    """Replace the file.

    Args:
        tokens: to sign with; []: the server asks for none, and the file is not signed.
    """
    text = json.dumps(asdict(address), sort_keys=True)
    sealed = {"value": text, "seals": [_seal(text, token) for token in tokens]}
    storage.write_whole(path, json.dumps(sealed).encode())


def read(path: str, tokens: list[bytes]) -> ServerAddress:
    """The address.

    Args:
        tokens: of the server; the file must be signed with one. []: its signature is not looked at.
    Raises:
        NotFound: there is no file.
        ModelError: it is another file, or is not signed with one of the tokens.
    """
    try:
        sealed = storage.read_json(path)
        text, seals = sealed["value"], [str(seal) for seal in sealed["seals"]]
        address = ServerAddress(**json.loads(text))
        if not _URL.fullmatch(address.url):
            raise ValueError(address.url)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            "the file of the server's address is another file", where=path,
            got=type(error).__name__, remedy="howdah serve stop --yarn, then start it again",
        ) from None  # fmt: skip
    if tokens and not any(
        hmac.compare_digest(seal.encode("utf-8", "replace"), _seal(text, one).encode())
        for one in tokens
        for seal in seals
    ):
        raise ModelError(
            "the server's address is not signed with this token", where=path,
            expected="the file that a server with this token has written",
            remedy="give the token file of the server; else another user may have written the file",
        )  # fmt: skip
    return address


def _seal(text: str, token: bytes) -> str:
    return hmac.digest(token, _SUBJECT + text.encode(), hashlib.sha256).hex()
