"""Counts the ports of `job.ports` that a job needs on one host, and checks the range for them.

A range that is too small would fail late: ranks without a port fail while their world forms, and
only if YARN has put several workers on one host.
"""

from __future__ import annotations

from collections.abc import Mapping

from howdah.config.job import JobSection
from howdah.errors import ClusterError

_DRIVER = 1
"""Ports of the driver's server, for agents, rendezvous and page."""
_MPI_DAEMON = 1
"""Ports of mpirun and of each of its daemons, which get two (howdah.jobs.mpi.node.mpi_environment)
and work with one."""


def most_ports(options: JobSection, world: int, workers: int, *, driver: bool) -> int:
    """The most ports that processes use at once on the address of one host.

    An agent's relay takes a port of the range too, but listens on loopback.

    Args:
        options: the job's section, for its controller.
        world: number of ranks in all.
        workers: number of ranks on this host.
        driver: True if the driver is on this host too.
    """
    count = 0
    if world > 1:  # a single rank does not start Horovod
        each = {
            "mpi": _MPI_DAEMON + 1,  # and one for the rank
            "gloo": world - 1,  # one for each peer, until it has connected
        }
        count = workers * each[options.controller]
    if driver:
        count += _DRIVER + (_MPI_DAEMON if options.controller == "mpi" else 0)
    return max(count, min(workers, 1))  # at least one for the relay


def problem(options: JobSection, slots: Mapping[str, int]) -> ClusterError | None:
    """An error if the range is too small even when YARN spreads the workers evenly; else None.

    Args:
        options: the request.
        slots: {host of the cluster: number of workers that fit on it}.
    """
    world = _world(options, slots)
    if options.port_range is None or not world:
        return None
    available, fullest = len(options.port_range), _fullest(world, slots)
    # At best the driver runs on a host with fewer workers, if there is one.
    uneven = any(count < fullest for count in slots.values()) or fullest * len(slots) > world
    least = most_ports(options, world, fullest, driver=not uneven)
    if available >= least:
        return None
    hosts = sum(count > 0 for count in slots.values())
    return ClusterError(
        "the range of ports is too small for the job",
        where=f"job.ports {options.ports}",
        expected=f"at least {least} ports: of {world} workers on {hosts} hosts, one has {fullest}",
        got=f"{available} ports",
        remedy="give a wider range, or leave it out, or request fewer workers",
    )


def warning(options: JobSection, slots: Mapping[str, int]) -> str | None:
    """A line if the range is too small when YARN fills one host; else None."""
    world = _world(options, slots)
    if options.port_range is None or not world:
        return None
    together = min(world, max(slots.values()))
    available, most = len(options.port_range), most_ports(options, world, together, driver=True)
    if available >= most:
        return None
    return (
        f"job.ports {options.ports} has {available} ports; {together} workers and the driver need"
        f" {most} if YARN puts them on one host"
    )


def _world(options: JobSection, slots: Mapping[str, int]) -> int:
    """The most ranks that the job can have at once."""
    return min(options.most, sum(slots.values()))


def _fullest(world: int, slots: Mapping[str, int]) -> int:
    """Number of workers on the fullest host when they are spread as evenly as possible."""
    count = 1
    while sum(min(most, count) for most in slots.values()) < world:
        count += 1
    return count
