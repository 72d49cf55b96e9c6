"""Gloo's rendezvous through the agents' relays: what ranks read, and what the driver is asked."""

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from howdah.jobs import world
from howdah.jobs.net import peer_socket, rendezvous, wire
from howdah.jobs.net.meshes import Meshes
from howdah.jobs.net.relay import Relay
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import Server
from tests.runs.jobs.simulated_agents import ADDRESS_BYTES, address, by_http, connect

MESHES = ("global", "cross_0", "global_process_set_hash_1f", "cross_0_process_set_hash_1f")


class Store:
    """A driver's rendezvous behind a real signed server that counts requests and connections."""

    def __init__(self, generation=3):
        self.key, self.requests, self.connections = new_key(), [], set()
        self.rendezvous = rendezvous.Rendezvous()
        self.rendezvous.begin(generation)
        self.server = Server(
            "127.0.0.1", None, self.key, signed=self._signed,
            page=lambda path: (404, "text/plain", b""), refused=print,
        )  # fmt: skip
        self.server.start()

    def _signed(self, method, path, body):
        self.requests.append((method, path))
        self.connections.add(threading.get_ident())  # the server has a thread a connection
        words = path.strip("/").split("/")
        return rendezvous.answer(self.rendezvous, method, int(words[1]), words[2:], body)

    def relay(self, rank, size, generation=3):
        slot = f"{rank},{size},0,1,{rank},{size}"
        one = Relay(
            wire.Client("127.0.0.1", self.server.port, self.key), None,
            assignment=lambda: (generation, slot), refused=print,
        )  # fmt: skip
        one.start()
        return one

    def world(self, size, meshes=MESHES):
        """All ranks connect at once; how many requests they have made of their relays."""
        relays = [self.relay(rank, size) for rank in range(size)]
        barriers = {scope: threading.Barrier(size) for scope in meshes}

        def rank(number):
            ask = by_http(relays[number].port)
            return sum(
                connect(ask, scope, number, size, barrier=lambda s=scope: barriers[s].wait(60))
                for scope in meshes
            )

        with ThreadPoolExecutor(size) as pool:
            made = sum(pool.map(rank, range(size)))
        for relay in relays:
            relay.stop()
        return made


@pytest.fixture
def store():
    one = Store()
    yield one
    one.server.stop()


def test_a_world_of_n_ranks_costs_the_driver_requests_in_proportion_to_n():
    counts = {}
    for size in (5, 15):
        store = Store()
        made = store.world(size)
        store.server.stop()
        counts[size] = len(store.requests)
        assert made > len(MESHES) * size * (2 * (size - 1))  # what Gloo's clients asked
        # Two values left, two questions and a removal for each rank and mesh; names that are not
        # there within a second, and addresses within five, may be asked for again.
        assert counts[size] <= 6 * len(MESHES) * size
        assert len(store.connections) <= 2 * size
    assert counts[15] <= 3.3 * counts[5]


def outputs_of_ranks(program, slots, relays) -> list[str]:
    """Run a program as the rank of each slot; what each prints. The relays are stopped."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **world.variables(
                slot, relay_port=relay.port, interface="lo", gloo_timeout_seconds=120.0,
                elastic=False)},
        )
        for slot, relay in zip(slots, relays, strict=True)
    ]  # fmt: skip
    try:
        return [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for relay in relays:
            relay.stop()


@pytest.mark.full  # elastic runs connect by the relays in every run
def test_gloo_itself_connects_by_what_the_relays_answer(store):
    """Real ranks (Horovod in torch processes), each on a host of its own as far as it knows."""
    size = 3
    relays = [store.relay(rank, size) for rank in range(size)]
    program = (
        "import horovod.torch as hvd, torch; hvd.init();"
        " print(hvd.allgather(torch.tensor([hvd.rank()])).tolist(), hvd.cross_size());"
        " hvd.shutdown()"
    )
    slots = [
        world.Slot(
            member="m", node=f"host-{rank}", rank=rank, size=size, local_rank=0, local_size=1,
            cross_rank=rank, cross_size=size, keep=False,
        )
        for rank in range(size)
    ]  # fmt: skip
    lines = outputs_of_ranks(program, slots, relays)
    assert lines == ["[0, 1, 2] 3\n"] * size
    scopes = {path.split("/")[3] for _, path in store.requests}
    assert {scope.partition("_process_set")[0] for scope in scopes} == {
        "global", "cross_0", "local_host-0", "local_host-1", "local_host-2"
    }  # fmt: skip
    paths = [path for method, path in store.requests if method == "GET"]
    assert paths and all("/names/" in path or "/column/" in path for path in paths)


def test_a_rank_that_comes_late_is_waited_for(store):
    relay = store.relay(0, 2)
    ask = by_http(relay.port)
    assert ask("PUT", "global", "0", address("global", 0, 1))[0] == 200
    got = []
    first = threading.Thread(target=lambda: got.append(ask("GET", "global", "1", b"")))
    first.start()
    store.rendezvous.put(3, "global", "1", address("global", 1, 0))
    first.join(30)
    assert got == [(200, address("global", 1, 0))]
    relay.stop()


def test_a_world_that_ends_while_ranks_wait_is_refused_at_once(store):
    relay = store.relay(0, 2)
    ask = by_http(relay.port)
    ask("PUT", "global", "0", address("global", 0, 1))
    got = []
    waiting = threading.Thread(target=lambda: got.append(ask("GET", "global", "1", b"")))
    waiting.start()
    store.rendezvous.begin(4)
    waiting.join(30)
    assert got[0][0] == 410
    relay.stop()


def meshes_of(store, slot="0,3,0,1,0,3"):
    """A process's meshes, and what it asks of the store, without a network."""
    requests = []

    def request(method, path, body):
        requests.append((method, path))
        words = path.strip("/").split("/")
        return rendezvous.answer(store, method, int(words[1]), words[2:], body)[::2]

    place = [3, slot]
    return Meshes(lambda: tuple(place), request), requests, place


def test_values_that_are_no_addresses_are_handed_over_one_by_one():
    store = rendezvous.Rendezvous()
    store.begin(3)
    meshes, _, _ = meshes_of(store)
    assert meshes.answer("PUT", "global", "0", b"odd") == (200, b"")
    store.put(3, "global", "1", b"other")
    store.put(3, "global", "2", b"x")
    assert meshes.answer("GET", "global", "1", b"") == (200, b"other")
    assert meshes.answer("GET", "global", "2", b"") == (200, b"x")
    assert meshes.answer("GET", "global", "some-key", b"")[0] == 404


def test_a_set_of_some_ranks_is_a_mesh_of_its_own_size():
    store = rendezvous.Rendezvous()
    store.begin(3)
    meshes, requests, _ = meshes_of(store)
    scope = "global_process_set_hash_aa"
    meshes.answer("PUT", "global", "0", address("global", 0, 1) + address("global", 0, 2))
    meshes.answer("PUT", scope, "0", address(scope, 0, 1))
    store.put(3, scope, "1", address(scope, 1, 0))
    assert meshes.answer("GET", scope, "1", b"") == (200, address(scope, 1, 0))
    assert requests[-1] == ("GET", f"/rendezvous/3/{scope}/column/2/0")


def test_what_was_fetched_for_one_world_is_not_answered_in_the_next():
    store = rendezvous.Rendezvous()
    store.begin(3)
    meshes, _, place = meshes_of(store, "0,2,0,1,0,2")
    meshes.answer("PUT", "global", "0", address("old", 0, 1))
    store.put(3, "global", "1", address("old", 1, 0))
    assert meshes.answer("GET", "global", "1", b"") == (200, address("old", 1, 0))
    store.begin(4)
    assert meshes.answer("GET", "global", "1", b"")[0] == 200  # still of the world it is in
    place[0] = 4
    meshes.answer("PUT", "global", "0", address("new", 0, 1))
    store.put(4, "global", "1", address("new", 1, 0))
    assert meshes.answer("GET", "global", "1", b"") == (200, address("new", 1, 0))


def test_a_body_of_several_values_is_read_back_or_refused():
    values = [b"", None, b"one", bytes(ADDRESS_BYTES)]
    assert rendezvous.unpack(rendezvous.pack(values)) == values
    with pytest.raises(ValueError):
        rendezvous.unpack(rendezvous.pack(values)[:-1])
    with pytest.raises(ValueError):
        rendezvous.unpack(b"\1")


# --------------------------------------------------------------------- who is at the other end
@pytest.fixture(params=["sock_diag", "table"])
def owner(request, monkeypatch):
    """The process at the other end, by each of the kernel's two ways to tell."""
    if request.param == "table":

        def away(peer, here):
            raise OSError("no sock_diag")

        monkeypatch.setattr(peer_socket, "_by_sock_diag", away)
    else:

        def unread(peer, here):
            raise AssertionError("the whole table was read")

        monkeypatch.setattr(peer_socket, "_by_table", unread)
    return peer_socket.owner_of_peer


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_owner_of_a_connection_is_known_as_long_as_it_holds_it(owner, family):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.socket(family)
        port = server.getsockname()[1]
        client.connect(("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", port))
        ours, peer = server.accept()
        here = ours.getsockname()
        assert owner(peer, here) == os.geteuid()
        # Closed by its process, it has no owner: the kernel says user 0, which may be ours.
        client.close()
        assert owner(peer, here) is None
        assert owner(("127.0.0.1", port), here) is None  # a socket that listens is no connection
        assert owner(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
        ours.close()


def test_ranks_of_torch_distributed_meet_by_the_relays(store):
    """Real ranks of torch, whose store asks for the values of all ranks at once."""
    size = 3
    relays = [store.relay(rank, size) for rank in range(size)]
    program = (
        "import torch, torch.distributed as dist, sys;"
        "from howdah.training.comm.distributed_torch import TorchComm;"
        "comm = TorchComm(); import numpy as np;"
        "print(comm.gather(np.array([comm.rank])).tolist(), comm.local_size);"
        "comm.shutdown()"
    )
    slots = [
        world.Slot(
            member="m", node="host", rank=rank, size=size, local_rank=rank, local_size=size,
            cross_rank=0, cross_size=1, keep=False,
        )
        for rank in range(size)
    ]  # fmt: skip
    lines = outputs_of_ranks(program, slots, relays)
    assert lines == ["[0, 1, 2] 3\n"] * size
    requests = [path for method, path in store.requests if method == "GET"]
    assert requests and all("/names/" in path for path in requests)


def test_a_value_of_a_torch_rank_is_waited_for_and_ends_with_its_world(store):
    """Two values of four are there: each is read, a third is not there yet, then it comes; a key
    of another world is refused."""
    relay = store.relay(1, 4)
    ask = by_http(relay.port)
    for rank in (0, 1):
        assert ask("PUT", "torch0", f"rank_{rank}", b"at %d" % rank)[0] == 200
    assert ask("GET", "torch0", "rank_0", b"") == (200, b"at 0")
    assert ask("GET", "torch0", "rank_2", b"")[0] == 404
    assert store.rendezvous.put(3, "torch0", "rank_2", b"at 2")
    assert ask("GET", "torch0", "rank_2", b"") == (200, b"at 2")
    assert ask("PUT", "torch", "unique-id", b"id")[0] == 200
    assert ask("GET", "torch", "unique-id", b"") == (200, b"id")
    store.rendezvous.begin(4)
    assert ask("GET", "torch0", "rank_3", b"")[0] == 410
    assert ask("PUT", "torch0", "rank_1", b"late")[0] == 410
    relay.stop()
