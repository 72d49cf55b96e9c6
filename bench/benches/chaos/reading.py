"""What was written, read without the product: plain HTTP, bytes of TFRecords, Parquet, JSON.

Each check raises `Broken` with what is wrong. A read that fails because a daemon is away right now
is made again.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import io
import json
import re
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tools.minicluster.plan import HOST

LIMIT = 300.0  # seconds that a daemon may be away
T = TypeVar("T")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ROW_ID = re.compile(rb"p\d{4}-\d{5}")


class Broken(Exception):
    """An invariant that does not hold."""


class _Ticket(urllib.request.BaseHandler):
    """Sends this process's Kerberos ticket along (SPNEGO)."""

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        """The request with its header."""
        import gssapi

        service = gssapi.Name(f"HTTP@{HOST}", gssapi.NameType.hostbased_service)
        token = gssapi.SecurityContext(name=service, usage="initiate").step()
        header = f"Negotiate {base64.b64encode(token or b'').decode()}"
        request.add_unredirected_header("Authorization", header)
        return request


def sign_in() -> None:
    """From now on requests have a ticket."""
    _OPENER.add_handler(_Ticket())


def get(url: str, timeout: float = 20.0) -> bytes:
    """The body of a GET.

    Raises:
        OSError: no answer, or an error's status.
    """
    with _OPENER.open(url, timeout=timeout) as answer:
        return answer.read()


def send(method: str, url: str, body: object = None) -> dict:
    """The JSON that the ResourceManager answers to a request; {}: none.

    Raises:
        OSError: no answer, or an error's status.
    """
    data = json.dumps(body).encode() if body is not None else b""
    header = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, data, header, method=method)
    with _OPENER.open(request, timeout=20.0) as answer:
        return json.loads(answer.read() or b"{}")


def again(read: Callable[[], T]) -> T:
    """What `read` gives, once it does not fail for a daemon that is away."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return read()
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                raise
            if time.monotonic() > deadline:
                raise Broken(f"nothing can be read for {LIMIT:.0f} s: {error!r}") from error
            time.sleep(0.5)


class Hdfs:
    """Files on HDFS by its REST API.

    Args:
        addresses: gives HOST:PORT of the NameNodes' web servers; the active one answers.
        user: who asks.
    """

    def __init__(self, addresses: Callable[[], list[str]], user: str) -> None:
        self._addresses, self._user = addresses, user

    def _ask(self, path: str, op: str) -> bytes:
        def ask() -> bytes:
            for number, address in enumerate(addresses := self._addresses()):
                query = urllib.parse.urlencode({"op": op, "user.name": self._user})
                try:
                    return get(f"http://{address}/webhdfs/v1{urllib.parse.quote(path)}?{query}")
                except OSError:
                    if number + 1 == len(addresses):
                        raise
            raise OSError("no NameNode")

        return again(ask)

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if there is no such directory."""
        try:
            listing = json.loads(self._ask(path, "LISTSTATUS"))
        except urllib.error.HTTPError:
            return []
        return sorted(one["pathSuffix"] for one in listing["FileStatuses"]["FileStatus"])

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        return self._ask(path, "OPEN")

    def json(self, path: str) -> dict:
        """A JSON file."""
        return json.loads(self.read(path))


# ---------------------------------------------------------------------------------- a training
def losses(lines: Iterable[bytes]) -> list[tuple[int, float]]:
    """(step, loss) of each step in metrics.jsonl.

    Who begins again at an earlier step, from a checkpoint or from memory, takes the place of the
    lines from there on.
    """
    steps: dict[int, float] = {}
    for line in map(json.loads, lines):
        if "split" not in line:
            if line["step"] in steps:
                steps = {step: loss for step, loss in steps.items() if step < line["step"]}
            steps[line["step"]] = line["loss"]
    return list(steps.items())


def check_epochs(steps: list[tuple[int, float]], per_epoch: int) -> None:
    """With a learning rate of nearly 0 every epoch's mean loss is that of all rows: a row that is
    left out, or comes twice, changes it."""
    means = [
        sum(loss for _, loss in steps[begin : begin + per_epoch]) / per_epoch
        for begin in range(0, len(steps) - per_epoch + 1, per_epoch)
    ]
    if max(means) - min(means) > 1e-5:
        raise Broken(f"epochs have not trained the same rows: mean losses {means}")


def check_steps(steps: list[tuple[int, float]], reference: Mapping[int, float], last: int) -> int:
    """Each step is there once, in order, with the loss of the undisturbed run: it has trained the
    same rows. Returns how many lines lack.

    What a killed rank 0 had logged in its last seconds is not on HDFS: lines may lack.
    """
    numbers = [number for number, _ in steps]
    if numbers != sorted(set(numbers)):
        twice = [n for n, count in collections.Counter(numbers).items() if count > 1]
        raise Broken(f"steps are logged twice or out of order: {twice[:10]}")
    if not numbers or numbers[-1] != last:
        raise Broken(f"the last step is {numbers[-1:]}, not {last}")
    wrong = [(n, loss, reference[n]) for n, loss in steps if abs(loss - reference[n]) > 1e-4]
    if wrong:
        raise Broken(f"{len(wrong)} steps have trained other rows: (step, loss, right) {wrong[:3]}")
    return last - len(numbers)


def check_checkpoints(hdfs: Hdfs, directory: str) -> int:
    """Every published checkpoint is whole; returns how many there are."""
    names = [name for name in hdfs.names(directory) if re.fullmatch(r"step-\d+", name)]
    for name in names:
        manifest = hdfs.json(f"{directory}/{name}/manifest.json")
        for file, entry in manifest["files"].items():
            data = hdfs.read(f"{directory}/{name}/{file}")
            if (len(data), hashlib.sha256(data).hexdigest()) != (entry["bytes"], entry["sha256"]):
                raise Broken(f"checkpoint {name}: {file} is not what its manifest says")
    return len(names)


# ---------------------------------------------------------------------------------- a dataset
def records(data: bytes) -> list[bytes]:
    """Payloads of a TFRecord file: length (8), its CRC (4), payload, its CRC (4)."""
    payloads, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            raise Broken("a TFRecord file ends in the middle of a record")
        payloads.append(data[at + 12 : end])
        at = end + 4
    return payloads


def check_dataset(hdfs: Hdfs, root: str, expected: set[str]) -> None:
    """The newest version has every row of every part once, and no version is half."""
    versions = {}
    for name in hdfs.names(root):
        if name.startswith("v="):
            versions[name] = hdfs.json(f"{root}/{name}/manifest.json")
    newest = max(versions, key=lambda name: versions[name]["created"])
    ids: list[str] = []
    for entries in versions[newest]["splits"].values():
        for entry in entries:
            data = hdfs.read(f"{root}/{entry.get('version') or newest}/{entry['name']}")
            if len(data) != entry["bytes"]:
                raise Broken(f"{entry['name']}: {len(data)} bytes, not {entry['bytes']}")
            for payload in records(data):
                (row_id,) = set(_ROW_ID.findall(payload))
                ids.append(row_id.decode())
    twice = [row_id for row_id, count in collections.Counter(ids).items() if count > 1]
    if twice or set(ids) != expected:
        lost = sorted(expected - set(ids))
        more = sorted(set(ids) - expected)
        raise Broken(f"rows of {newest}: twice {twice[:5]}, lost {lost[:5]}, unknown {more[:5]}")


# ------------------------------------------------------------------- a model and what it scored
def check_versions(hdfs: Hdfs, model: str, count: int) -> None:
    """There are so many versions, all whole, and one is current: the last one."""
    names = hdfs.names(model)
    versions = sorted(int(name[2:]) for name in names if re.fullmatch(r"v=\d+", name))
    history = [name for name in hdfs.names(f"{model}/history") if name.endswith(".json")]
    entries = [hdfs.json(f"{model}/history/{name}")["version"] for name in history]
    current = hdfs.json(f"{model}/current.json")["version"]
    want = list(range(1, count + 1))
    if (versions, entries, current) != (want, want, count):
        raise Broken(
            f"{count} runs were published once each: versions {versions}, history {entries}, "
            f"current {current}"
        )


def check_scored(
    hdfs: Hdfs, partition: str, keys: set[str], label_of: Callable[[int], str]
) -> None:
    """A partition has each key once, all by one version of the model, with its label."""
    import pyarrow.parquet as pq

    rows = []
    for name in hdfs.names(partition):
        if not name.startswith(("_", ".")):
            rows += pq.read_table(io.BytesIO(hdfs.read(f"{partition}/{name}"))).to_pylist()
    counts = collections.Counter(row["id"] for row in rows)
    if counts != collections.Counter(keys):
        raise Broken(f"{partition}: {len(rows)} rows, {len(counts)} keys, not {len(keys)}")
    versions = {row["model_version"] for row in rows}
    labels = {row["label"] for row in rows}
    if len(versions) != 1 or labels != {label_of(next(iter(versions)))}:
        raise Broken(f"{partition}: versions {versions}, labels {labels}")
