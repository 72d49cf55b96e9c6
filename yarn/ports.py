"""How many ports of `yarn.ports` a job needs on one host, and whether the range has as many.

A range that is too small shows late: ranks that find no port fail while their world is made, and
only where YARN happened to put several workers on one host.
"""

from __future__ import annotations

from collections.abc import Mapping

from howdah.config_yarn import YarnSection
from howdah.errors import ClusterError

__all__ = ["needed", "problem", "warning"]

_DRIVER = 1
"""Its server, for the agents, the rendezvous and the page."""
_MPI_DAEMON = 1
"""Of mpirun and of each of its daemons: of the two that they are given (mpi_node.mpi_environment)
they do with the one that they get."""


def needed(options: YarnSection, world: int, workers: int, *, driver: bool) -> int:
    """Most ports that are listened on at once on one host's address.

    An agent's relay listens on loopback: its port is one of the range, but of no other's address.

    Args:
        options: the job's; its controller counts.
        world: ranks in all.
        workers: how many of them are on this host.
        driver: whether the driver is there too.
    """
    if world == 1:
        found = 0  # a world of one starts no Horovod
    elif options.controller == "mpi":
        found = workers * (_MPI_DAEMON + 1)  # the rank's own
    else:
        found = workers * (world - 1)  # Gloo: one for each peer, until it has called
    if driver:
        found += _DRIVER + (_MPI_DAEMON if options.controller == "mpi" else 0)
    return max(found, min(workers, 1))  # at least the relay's


def problem(options: YarnSection, places: Mapping[str, int]) -> ClusterError | None:
    """The range is too small for the job, however evenly YARN spreads its workers.

    Args:
        options: the ask.
        places: hosts of the cluster, and how many workers fit each.
    """
    world = _world(options, places)
    if options.port_range is None or not world:
        return None
    there, fullest = _size(options.port_range), _fullest(world, places)
    # The driver goes where it costs least: to a host with fewer workers, if there is one.
    uneven = any(room < fullest for room in places.values()) or fullest * len(places) > world
    least = needed(options, world, fullest, driver=not uneven)
    if there >= least:
        return None
    hosts = sum(room > 0 for room in places.values())
    return ClusterError(
        "the range of ports is too small for the job",
        where=f"yarn.ports {options.ports}",
        expected=f"at least {least} ports: {world} workers on {hosts} hosts are {fullest} on one",
        got=f"{there} ports",
        remedy="give a wider range, or none, or ask for fewer workers",
    )


def warning(options: YarnSection, places: Mapping[str, int]) -> str | None:
    """A line where the range is too small for the fullest host that YARN may make."""
    world = _world(options, places)
    if options.port_range is None or not world:
        return None
    together = min(world, max(places.values()))
    there, most = _size(options.port_range), needed(options, world, together, driver=True)
    if there >= most:
        return None
    return (
        f"yarn.ports {options.ports} are {there} ports; {together} workers and the driver, should"
        f" YARN put them on one host, need {most}"
    )


def _world(options: YarnSection, places: Mapping[str, int]) -> int:
    """Most ranks that there will be at once."""
    return min(options.most, sum(places.values()))


def _fullest(world: int, places: Mapping[str, int]) -> int:
    """Workers on the fullest host, where they lie as evenly as can be."""
    count = 1
    while sum(min(room, count) for room in places.values()) < world:
        count += 1
    return count


def _size(ports: tuple[int, int]) -> int:
    first, last = ports
    return last - first + 1
