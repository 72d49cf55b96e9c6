"""The file from which clients read the address of a model's server on a cluster.

    <publish.directory>/<name>/server.json     {"value": "{...}", "seals": ["..."]}

A user who may write to the model's directory could write another address there, and clients would
send their texts and the token to it. So the file is signed with each of the server's tokens; a
client holds one. The signature has no time: such a user can put back a file that an earlier
container with the same tokens has signed (SECURITY.md).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass

from howdah import storage
from howdah.errors import ModelError
from howdah.storage.shapes import TEXT, Fields, Items

FILE = "server.json"
TOKENS = ".howdah.tokens"
"""Name of the file with the server's tokens in its container's working directory."""
MODEL_VARIABLE = "HOWDAH_SERVE_MODEL"
"""Environment variable of the container: the model's path."""
ADDRESS_VARIABLE = "HOWDAH_SERVE_FILE"
"""Environment variable of the container: path of the file that the address is written to."""
_URL = re.compile(r"http://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_SUBJECT = b"howdah server address\n"
_SEALED = Fields({"value": TEXT, "seals": Items(TEXT)}, needed=("value", "seals"))


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The contents of the file."""

    url: str
    """http://host:port."""
    application: str
    container: str
    started: float
    """Seconds since 1970."""


def path_of(model_directory: str) -> str:
    """Path of the file for a published model."""
    return storage.join(model_directory, FILE)


def write(path: str, address: ServerAddress, tokens: list[bytes]) -> None:
    """Replace the file.

    Args:
        tokens: tokens to sign with; []: the server needs none, and the file is not signed.
    """
    text = json.dumps(asdict(address), sort_keys=True)
    sealed = {"value": text, "seals": [_seal(text, token) for token in tokens]}
    storage.write_whole(path, json.dumps(sealed).encode())


def read(path: str, tokens: list[bytes]) -> ServerAddress:
    """Read the address and check the signature.

    Args:
        tokens: tokens of the server, one of which must have signed the file; []: no check.
    Raises:
        NotFound: there is no file.
        ModelError: the file is damaged, or is not signed with one of the tokens.
    """
    remedy = "end the server with `howdah kill`, then start it again"
    sealed = storage.read_object(path, _SEALED, kind=ModelError, remedy=remedy)
    text, seals = sealed["value"], sealed["seals"]
    try:
        address = ServerAddress(**json.loads(text))
        if not _URL.fullmatch(address.url):
            raise ValueError(address.url)
    except (TypeError, ValueError) as error:
        raise ModelError(
            "the file with the server's address is damaged",
            where=path,
            got=type(error).__name__,
            remedy=remedy,
        ) from None
    if tokens and not any(
        hmac.compare_digest(seal.encode("utf-8", "replace"), _seal(text, one).encode())
        for one in tokens
        for seal in seals
    ):
        raise ModelError(
            "the server's address is not signed with this token",
            where=path,
            remedy="use the server's token file; otherwise another user may have written the file",
        )
    return address


def _seal(text: str, token: bytes) -> str:
    return hmac.digest(token, _SUBJECT + text.encode(), hashlib.sha256).hex()
