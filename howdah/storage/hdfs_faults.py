"""What hdfs-native raises, as OSError, a NameNode's `Remote` or a typed error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from howdah.errors import StorageError
from howdah.storage.faults import Remote, not_authenticated

T = TypeVar("T")

_RPC = re.compile(r'^(?:Fatal)?RPCError\("([^"]+)", "(.*)"\)$', re.DOTALL)


def translated(path: str, doing: str, call: Callable[[], T]) -> T:
    """Raise OSError, Remote or a typed error for what hdfs-native raises."""
    try:
        return call()
    except (FileNotFoundError, FileExistsError) as error:
        message = str(error)
        if message.startswith("Path is not a file"):
            raise IsADirectoryError(path) from None
        if message.startswith("Path is not a directory"):
            raise NotADirectoryError(path) from None
        raise
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        # Sockets' errors come as text: "Connection refused (os error 111)", "early eof", ...
        raise ConnectionError(str(error)) from None
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise _of_native(path, doing, str(error)) from None


def _of_native(path: str, doing: str, text: str) -> Exception:
    found = _RPC.match(text)
    if found is not None:
        java_class, message = found.group(1), found.group(2).replace("\\n", "\n")
        message = message.replace('\\"', '"').replace("\\t", "\t").replace("\\'", "'")
        return Remote(java_class, message)
    kind = text.partition("(")[0]
    if kind in ("GSSAPIError", "SASLError", "NoSASLMechanism"):
        said = re.search(r'"([^"]+)"\)$', text)  # the last of a structure in Rust's notation
        cause = said.group(1) if said else text
        if "EXPIRED" in text:
            cause = f"the ticket has expired ({cause})"
        return not_authenticated(path, doing, cause)
    if kind in ("DataTransferError", "OperationFailed", "ChecksumError", "InternalError"):
        return ConnectionError(text)
    return StorageError(f"cannot {doing}", where=path, got=text)
