"""HDFS throughput: hdfs:// (hdfs-native) against WebHDFS, and libhdfs where it can be had.

One run on a mini cluster of its own (real NameNode and three DataNodes on loopback, replication 2):
1 GB and 1,000 files of 1 MB are written and read by each in turn. Ours is howdah.storage, with its
temporary names, renames and typed errors; the peers are the `hdfs` package's own client (WebHDFS),
pyarrow's HadoopFileSystem, and hdfs-native's own client (our layer's cost: the large file only).

    python -m bench.benches.storage            # HOWDAH_TEST_CLUSTER=directory: a running cluster
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench import harness
from howdah import storage

CHUNK = os.urandom(8 * 2**20)
LARGE_CHUNKS = 128  # 1 GiB
SMALL = os.urandom(2**20)
SMALL_FILES = 1000
THREADS = 4
ROUNDS = 3
MIB = 2**20


@contextmanager
def _cluster() -> Iterator[Any]:
    from tools.minicluster import MiniCluster

    running = os.environ.get("HOWDAH_TEST_CLUSTER")
    if running:
        yield MiniCluster(running)
        return
    with tempfile.TemporaryDirectory() as folder:
        cluster = MiniCluster(folder)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(remove=True)


class Ours:
    """howdah.storage on hdfs:// or webhdfs://."""

    def __init__(self, base: str) -> None:
        self.base = base

    def write(self, name: str, chunks: int, chunk: bytes) -> None:
        def fill(file) -> None:
            for _ in range(chunks):
                file.write(chunk)

        storage.write_stream(f"{self.base}/{name}", fill, size=chunks * len(chunk))

    def read(self, name: str) -> int:
        count = 0
        with storage.open_read(f"{self.base}/{name}") as file:
            while data := file.read(len(CHUNK)):
                count += len(data)
        return count


class HdfsPackage:
    """The `hdfs` package: WebHDFS, as its documentation uses it."""

    def __init__(self, url: str, base: str) -> None:
        import hdfs

        self.client, self.base = hdfs.InsecureClient(url, user="root"), base

    def write(self, name: str, chunks: int, chunk: bytes) -> None:
        self.client.write(
            f"{self.base}/{name}", data=(chunk for _ in range(chunks)), overwrite=True
        )

    def read(self, name: str) -> int:
        with self.client.read(f"{self.base}/{name}", chunk_size=len(CHUNK)) as chunks:
            return sum(map(len, chunks))


class HdfsNative:
    """hdfs-native's own client."""

    def __init__(self, url: str, base: str) -> None:
        from hdfs_native import Client

        self.client, self.base = Client(url), base

    def write(self, name: str, chunks: int, chunk: bytes) -> None:
        from hdfs_native import WriteOptions

        with self.client.create(f"{self.base}/{name}", WriteOptions(overwrite=True)) as file:
            for _ in range(chunks):
                file.write(chunk)

    def read(self, name: str) -> int:
        file, count = self.client.read(f"{self.base}/{name}"), 0
        while data := file.read(len(CHUNK)):
            count += len(data)
        return count


class LibHdfs:
    """pyarrow's HadoopFileSystem, through libhdfs and a Java virtual machine."""

    def __init__(self, url: str, base: str) -> None:
        from pyarrow import fs

        host, _, port = url.partition("//")[2].partition(":")
        self.client, self.base = fs.HadoopFileSystem(host, int(port)), base

    def write(self, name: str, chunks: int, chunk: bytes) -> None:
        with self.client.open_output_stream(f"{self.base}/{name}") as file:
            for _ in range(chunks):
                file.write(chunk)

    def read(self, name: str) -> int:
        count = 0
        with self.client.open_input_stream(f"{self.base}/{name}") as file:
            while data := file.read(len(CHUNK)):
                count += len(data)
        return count


def _large_write(system: Any) -> None:
    system.write("large", LARGE_CHUNKS, CHUNK)


def _large_read(system: Any) -> None:
    if system.read("large") != LARGE_CHUNKS * len(CHUNK):
        raise RuntimeError(f"{type(system).__name__} read another length than was written")


def _small_write(system: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda n: system.write(f"small-{n}", 1, SMALL), range(SMALL_FILES)))


def _small_read(system: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        counts = list(pool.map(lambda n: system.read(f"small-{n}"), range(SMALL_FILES)))
    if counts != [len(SMALL)] * SMALL_FILES:
        raise RuntimeError(f"{type(system).__name__} read other lengths than were written")


TASKS: tuple[tuple[str, Callable[[Any], None], float], ...] = (
    ("write 1 GiB", _large_write, LARGE_CHUNKS * len(CHUNK) / MIB),
    ("read 1 GiB", _large_read, LARGE_CHUNKS * len(CHUNK) / MIB),
    (f"write {SMALL_FILES:,} x 1 MiB, {THREADS} threads", _small_write, SMALL_FILES),
    (f"read {SMALL_FILES:,} x 1 MiB, {THREADS} threads", _small_read, SMALL_FILES),
)


def main() -> None:
    """Each peer against ours, in turn; where libhdfs is missing that is said."""
    with _cluster() as cluster:
        for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "JAVA_HOME"):
            os.environ[name] = cluster.env[name]
        directory = f"/bench/{uuid.uuid4().hex[:8]}"
        native_url, web_url = cluster.hdfs_url, cluster.webhdfs_url.replace("webhdfs", "http", 1)
        ours = Ours(f"{native_url}{directory}/ours")
        peers: list[tuple[str, Any, Any]] = [
            ("WebHDFS, hdfs package", HdfsPackage(web_url, f"{directory}/web"), TASKS),
            ("hdfs-native alone", HdfsNative(native_url, f"{directory}/native"), TASKS[:2]),
        ]
        missing = None
        try:
            peers.append(("libhdfs, pyarrow", LibHdfs(native_url, f"{directory}/libhdfs"), TASKS))
        except (OSError, ImportError) as error:
            missing = str(error).partition("\n")[0]
            print(f"libhdfs is left out, it cannot be had here: {missing}", file=sys.stderr)
        rows = []
        try:
            for peer, system, tasks in peers:
                for what, task, work in tasks:
                    rows.append(
                        harness.compare(
                            what,
                            peer=peer,
                            run_peer=lambda task=task, system=system: task(system),
                            run_ours=lambda task=task: task(ours),
                            work=work,
                            unit="MiB/s",
                            rounds=ROUNDS,
                        )
                    )
        finally:
            storage.remove(f"{native_url}{directory}", recursive=True)
    harness.report("storage", rows, replication=2, libhdfs=missing or "measured")


if __name__ == "__main__":
    main()
