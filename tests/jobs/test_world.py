"""Ranks, local ranks and cross ranks of a world, and Horovod's variables for them."""

from howdah.jobs.world import Candidate, assign, variables


def places(slots):
    return {
        s.member: (s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots
    }


def test_ranks_of_a_node_are_numbered_within_it():
    slots = assign([Candidate("a1", "a"), Candidate("b1", "b"), Candidate("a2", "a")])
    assert places(slots) == {
        "a1": (0, 0, 2, 0, 2),
        "a2": (1, 1, 2, 0, 1),
        "b1": (2, 0, 1, 1, 2),
    }
    assert {slot.size for slot in slots} == {3}


def test_nodes_come_in_the_order_of_their_survivors_and_ranks_of_one_are_neighbours():
    slots = assign(
        [
            Candidate("new-c", "c"),
            Candidate("old-3", "b", old_rank=3),
            Candidate("new-a", "a"),
            Candidate("old-1", "a", old_rank=1),
        ]
    )
    assert [slot.member for slot in slots] == ["old-1", "new-a", "old-3", "new-c"]
    assert [slot.keep for slot in slots] == [True, False, True, False]
    assert places(slots)["new-a"] == (1, 1, 2, 0, 1)


def test_a_smaller_world_keeps_survivors():
    slots = assign([Candidate("new", "a"), Candidate("old", "a", old_rank=0)], 1)
    assert [slot.member for slot in slots] == ["old"]


def test_every_place_of_a_large_world_is_consistent():
    nodes = [f"n{number % 7}" for number in range(40)]
    slots = assign([Candidate(f"m{i}", node) for i, node in enumerate(nodes)])
    assert [slot.rank for slot in slots] == list(range(40))
    for node in set(nodes):
        mates = [slot for slot in slots if slot.node == node]
        assert sorted(slot.local_rank for slot in mates) == list(range(len(mates)))
        assert {slot.local_size for slot in mates} == {len(mates)}
    for local_rank in range(6):
        across = [slot for slot in slots if slot.local_rank == local_rank]
        assert sorted(slot.cross_rank for slot in across) == list(range(len(across)))
        assert {slot.cross_size for slot in across} <= {len(across)}


def test_a_node_s_name_becomes_one_that_horovod_can_put_into_a_path():
    (slot,) = assign([Candidate("m", "host:8041/rack")])
    env = variables(slot, relay_port=1, interface="eth0", gloo_timeout_seconds=1.2, elastic=True)
    assert env["HOROVOD_HOSTNAME"] == "host-8041-rack"
    assert env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "1"
    assert (env["HOROVOD_RANK"], env["HOROVOD_SIZE"], env["HOROVOD_ELASTIC"]) == ("0", "1", "1")
