"""How many ports of `job.ports` a job needs on one host, and whether the range has as many.

A range that is too small would show late: ranks without a port fail while their world forms, and
only if YARN has put several workers on one host.
"""

from __future__ import annotations

from collections.abc import Mapping

from howdah.config.job import JobSection
from howdah.errors import ClusterError

_DRIVER = 1
"""Of the driver's server, for agents, rendezvous and page."""
_MPI_DAEMON = 1
"""Of mpirun and of each of its daemons: each is given two (howdah.jobs.mpi.node.mpi_environment),
and works with one."""


def needed(options: JobSection, world: int, workers: int, *, driver: bool) -> int:
    """The most ports that one host's address listens on at once.

    An agent's relay takes a port of the range too, but listens on loopback.

    Args:
        options: the job's; its controller counts.
        world: ranks in all.
        workers: how many of them are on this host.
        driver: whether the driver is there too.
    """
    if world == 1:
        found = 0  # a world of one starts no Horovod
    else:
        each = {
            "mpi": _MPI_DAEMON + 1,  # the rank's own
            "gloo": world - 1,  # one for each peer, until it has connected
        }
        found = workers * each[options.controller]
    if driver:
        found += _DRIVER + (_MPI_DAEMON if options.controller == "mpi" else 0)
    return max(found, min(workers, 1))  # at least the relay's


def problem(options: JobSection, slots: Mapping[str, int]) -> ClusterError | None:
    """An error if the range is too small even when YARN spreads the workers evenly; else None.

    Args:
        options: the request.
        slots: {host of the cluster: how many workers it can hold}.
    """
    world = _world(options, slots)
    if options.port_range is None or not world:
        return None
    available, fullest = _size(options.port_range), _fullest(world, slots)
    # At best the driver runs on a host with fewer workers, if there is one.
    uneven = any(count < fullest for count in slots.values()) or fullest * len(slots) > world
    least = needed(options, world, fullest, driver=not uneven)
    if available >= least:
        return None
    hosts = sum(count > 0 for count in slots.values())
    return ClusterError(
        "the range of ports is too small for the job",
        where=f"job.ports {options.ports}",
        expected=f"at least {least} ports: {world} workers on {hosts} hosts are {fullest} on one",
        got=f"{available} ports",
        remedy="give a wider range, or none, or ask for fewer workers",
    )


def warning(options: JobSection, slots: Mapping[str, int]) -> str | None:
    """A line if the range is too small when YARN fills one host; else None."""
    world = _world(options, slots)
    if options.port_range is None or not world:
        return None
    together = min(world, max(slots.values()))
    available, most = _size(options.port_range), needed(options, world, together, driver=True)
    if available >= most:
        return None
    return (
        f"job.ports {options.ports} are {available} ports; {together} workers and the driver,"
        f" should YARN put them on one host, need {most}"
    )


def _world(options: JobSection, slots: Mapping[str, int]) -> int:
    """The most ranks that the job can have at once."""
    return min(options.most, sum(slots.values()))


def _fullest(world: int, slots: Mapping[str, int]) -> int:
    """Workers on the fullest host when they are spread as evenly as possible."""
    count = 1
    while sum(min(most, count) for most in slots.values()) < world:
        count += 1
    return count


def _size(ports: tuple[int, int]) -> int:
    first, last = ports
    return last - first + 1
