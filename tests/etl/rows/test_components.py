"""Connected components by the driver and by rounds in Spark: the same as a plain union-find's."""

import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howdah.etl.rows import components
from howdah.etl.workspace.scratch import Scratch

NODES = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(0, 30)


def plain(a, b):
    """{node: smallest node of its component}, by a union-find in plain Python."""
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for one, other in zip(a.tolist(), b.tolist(), strict=True):
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return {node: root(node) for node in list(parent)}


@given(st.lists(st.one_of(st.tuples(SMALL, SMALL), st.tuples(NODES, NODES)), min_size=1))
def test_roots_are_those_of_a_plain_union_find(edges):
    a, b = np.array(edges, dtype=np.int64).T
    nodes, root = components.roots(a, b)
    assert dict(zip(nodes.tolist(), root.tolist(), strict=True)) == plain(a, b)


def test_roots_of_a_long_chain_and_of_a_star():
    random = np.random.default_rng(3)
    names = np.unique(random.integers(-(2**63), 2**63 - 1, 100_001))
    for order in (names, random.permutation(names)):
        assert set(components.roots(order[:-1], order[1:])[1]) == {names[0]}
        centre = np.full(len(order) - 1, order[-1])
        assert set(components.roots(order[:-1], centre)[1]) == {names[0]}


def graph(size):
    """`size` edges over random names: a chain of 1,000, a star, a clique, the rest small trees."""
    random = np.random.default_rng(size)
    names = random.permutation(np.unique(random.integers(-(2**63), 2**63 - 1, 2 * size)))
    chain, star, rest = (
        names[:1_000],
        names[1_000 : 1_000 + size // 10],
        names[1_000 + size // 10 :],
    )
    some = rest[:20]
    a = [chain[:-1], star[1:], np.repeat(some, 20)]
    b = [chain[1:], np.full(len(star) - 1, star[0]), np.tile(some, 20)]
    left = size - sum(map(len, a))
    child = np.arange(21, 21 + left)
    a.append(rest[child])
    b.append(rest[np.where(child % 8 == 5, child, child - random.integers(1, 6, left))])
    return np.concatenate(a), np.concatenate(b)


def joined(spark, a, b, driver_edges, place):
    """(labels as two arrays, lines of progress) of what Spark makes of the edges."""
    edges = spark.createDataFrame(pd.DataFrame({"a": a, "b": b}), "a bigint, b bigint")
    temporary, lines = [], []
    with pytest.MonkeyPatch.context() as patch, Scratch(str(place), "0badcafe") as scratch:
        patch.setattr(components, "DRIVER_EDGES", driver_edges)
        roots = components.connected_components(edges, scratch, temporary, progress=lines.append)
        table = roots.toPandas()
    for frame in temporary:
        frame.unpersist()
    assert list(place.iterdir() if place.exists() else []) == []
    return table["node"].to_numpy(), table["root"].to_numpy(), lines


def assert_same(nodes, root, a, b):
    """The same nodes in the same components, whatever their roots are called."""
    apart = a != b
    expected_nodes, expected = components.roots(a[apart], b[apart])
    order = np.argsort(nodes)
    assert np.array_equal(nodes[order], expected_nodes)
    pairs = np.unique(np.stack((root[order], expected)), axis=1)
    assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ends", "driver_edges"),
    [
        ([], 0),
        ([4, 4], 10),
        pytest.param([], 10, marks=pytest.mark.full),
        pytest.param([4, 4], 0, marks=pytest.mark.full),
    ],
)
def test_no_edge_and_edges_to_oneself(spark, tmp_path, ends, driver_edges):
    ends = np.array(ends, dtype=np.int64)
    nodes, _, lines = joined(spark, ends, ends, driver_edges, tmp_path / "v=0")
    assert len(nodes) == 0 and lines == []


@pytest.mark.spark
def test_rounds_in_spark_and_the_driver_find_the_same(spark, tmp_path, monkeypatch):
    a, b = graph(4_000)
    nodes, root, lines = joined(spark, a, b, 10_000, tmp_path / "v=0")
    assert lines == []
    assert_same(nodes, root, a, b)
    with monkeypatch.context() as patched:  # by a file, as very many
        patched.setattr(components, "_FEW", 100)
        for driver_edges in (10_000, 1_000):
            nodes, root, lines = joined(spark, a, b, driver_edges, tmp_path / "v=0")
            assert bool(lines) == (driver_edges < 4_000)
            assert_same(nodes, root, a, b)
    # down to no edge at all, by rounds alone
    nodes, root, lines = joined(spark, a, b, 0, tmp_path / "v=0")
    assert 3 <= len(lines) <= 15, lines
    assert_same(nodes, root, a, b)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("shape", "driver_edges"), [("all", 10_000), ("all", 2_000_000), ("chain", 10_000)]
)
def test_a_million_edges_with_bounded_rounds_and_memory(
    spark, tmp_path, monkeypatch, shape, driver_edges
):
    monkeypatch.setattr(components, "DRIVER_EDGES", driver_edges)
    a, b = graph(1_000_000)
    if shape == "chain":
        random = np.random.default_rng(5)
        order = random.permutation(np.unique(random.integers(-(2**63), 2**63 - 1, 1_000_001)))
        a, b = order[:-1], order[1:]
    edges = spark.createDataFrame(pd.DataFrame({"a": a, "b": b}), "a bigint, b bigint")
    edges.write.parquet(str(tmp_path / "edges"))
    edges = spark.read.parquet(str(tmp_path / "edges"))
    temporary, lines = [], []
    with Scratch(str(tmp_path / "v=0"), "0badcafe") as scratch:
        tracemalloc.start()
        roots = components.connected_components(edges, scratch, temporary, progress=lines.append)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        table = roots.toPandas()
    for frame in temporary:
        frame.unpersist()
    assert len(lines) <= 15, lines
    assert peak < 200 * min(len(a), driver_edges) + 20 * 2**20
    assert_same(table["node"].to_numpy(), table["root"].to_numpy(), a, b)


# Two executors, each a process of its own. The third round begins without the one that was killed.
LOSING = """
import os, signal, sys
import psutil
from howdah.etl.rows import components
from howdah.etl.workspace.scratch import Scratch
from howdah.config.data import SparkOptions
from howdah.spark.session import session

place = sys.argv[1]
components.DRIVER_EDGES = 10

def command(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it is ending
        return []

def executors():
    return [
        one for one in psutil.Process().children(recursive=True)
        if any("CoarseGrainedExecutorBackend" in word for word in command(one))
    ]

def kill_in_the_third(line):
    print(line, flush=True)
    if "round 3:" in line:
        victim = executors()[0]
        os.kill(victim.pid, signal.SIGKILL)
        psutil.wait_procs([victim], timeout=60)
        print("KILLED", flush=True)

conf = {"spark.local.dir": place, "spark.executor.memory": "512m"}
options = SparkOptions(master="local-cluster[2,1,1024]", driver_memory="1g", conf=conf)
with session(options) as spark, Scratch(place + "/v=0", "0badcafe") as scratch:
    edges = spark.read.parquet(place + "/edges.parquet")
    temporary = []
    found = components.connected_components(
        edges, scratch, temporary, progress=kill_in_the_third
    )
    found.write.parquet(place + "/labels")
"""


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_executor_that_is_lost_between_rounds_costs_no_component(tmp_path):
    a, b = graph(4_000)
    pq.write_table(pa.table({"a": a, "b": b}), tmp_path / "edges.parquet")
    env = {**os.environ, "PYTHONPATH": os.getcwd(), "SPARK_WORKER_DIR": str(tmp_path / "work")}
    done = subprocess.run(
        [sys.executable, "-c", LOSING, str(tmp_path)], cwd=tmp_path, env=env,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert "KILLED" in lines and "round 4:" in lines[lines.index("KILLED") + 1], lines
    labels = pq.read_table(tmp_path / "labels")
    assert_same(labels["node"].to_numpy(), labels["root"].to_numpy(), a, b)


@pytest.fixture
def compiled(spark):
    """Queries are compiled, as those of users: millions of rows repay it."""
    key = "spark.sql.codegen.wholeStage"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    yield
    spark.conf.set(key, before)


def measured(name, work):
    """What `work` returns; its seconds and the peak of the driver's own memory are printed."""
    tracemalloc.start()
    began = time.monotonic()
    try:
        result = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{name}: {time.monotonic() - began:.1f} s, {peak / 2**20:.0f} MiB")
    return result, peak


@pytest.mark.full
@pytest.mark.parametrize("shape", ["chain", "star"])
def test_roots_of_a_million_edges_in_a_chain_and_in_a_star(shape):
    random = np.random.default_rng(7)
    names = np.unique(random.integers(-(2**63), 2**63 - 1, 1_000_001))
    order = random.permutation(names)
    a = order[:-1]
    b = order[1:] if shape == "chain" else np.full(len(a), order[-1])
    (nodes, root), peak = measured(f"{shape} of {len(a):,}", lambda: components.roots(a, b))
    assert len(nodes) == len(names) and set(root) == {names[0]}
    assert peak < 200 * len(a)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_million_edges_with_a_bounded_driver(spark, tmp_path, compiled):
    a, b = graph(10_000_000)
    table = pa.table({"a": a, "b": b})
    pq.write_table(table, tmp_path / "edges.parquet", row_group_size=500_000)
    del table
    edges = spark.read.parquet(str(tmp_path / "edges.parquet"))
    temporary, lines = [], []
    with Scratch(str(tmp_path / "v=0"), "0badcafe") as scratch:

        def join():
            roots = components.connected_components(
                edges, scratch, temporary, progress=lines.append
            )
            roots.write.parquet(str(tmp_path / "labels"))

        _, peak = measured("10,000,000 edges", join)
    for frame in temporary:
        frame.unpersist()
    assert 1 <= len(lines) <= 15, lines
    assert peak < 200 * 2_000_000 + 20 * 2**20  # by the edges that it takes, not by all of them
    labels = pq.read_table(tmp_path / "labels")
    assert_same(labels["node"].to_numpy(), labels["root"].to_numpy(), a, b)
