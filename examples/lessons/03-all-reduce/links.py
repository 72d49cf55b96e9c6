"""Machines on one machine: a network namespace for each rank, whose link `tc` cuts down.

It needs root and Debian's iproute2. Namespaces, bridge and links belong to these processes and are
gone when they are. Elsewhere CUT is False, and a sleep has to stand for a link.
"""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time

import torch.distributed as dist
import torch.multiprocessing as mp

RATE = 200e6  # bit/s of each link, in each direction
CLONE_NEWNET = 0x40000000


def new_network():
    """Move this process into an empty network; False if that is not allowed."""
    return ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0


CUT = shutil.which("tc") is not None and new_network()


def sh(command):
    """Run a command."""
    subprocess.run(command.split(), check=True)


def occupy(x):
    """Where links are not cut, a sleep stands for the time that x takes on one."""
    if not CUT:
        time.sleep(8 * x.nbytes / RATE)


def receive(x, source=None):
    """Receive from a rank, or from any."""
    source = dist.recv(x, source)
    occupy(x)
    return source


def cut(device):
    """Let no more than RATE leave by this device."""
    sh(f"tc qdisc add dev {device} root tbf rate {RATE:.0f}bit burst 64kb latency 100ms")


def start(work, ranks):
    """Run work(rank) in a process, and on a machine, for each rank; they know each other."""
    plugs = multiprocessing.get_context("fork").Barrier(ranks + 1)
    with tempfile.TemporaryDirectory() as folder:
        args = (work, ranks, plugs, f"file://{folder}/store")
        running = mp.start_processes(machine, args, ranks, join=False, start_method="fork")
        if CUT:
            plugs.wait()  # every rank is in its own network now
            sh("ip link add switch type bridge")
            sh("ip link set switch up")
            for rank, pid in enumerate(running.pids()):
                sh(f"ip link add port{rank} type veth peer name eth0 netns {pid}")
                sh(f"ip link set port{rank} master switch up")
                cut(f"port{rank}")  # what goes to this rank
            plugs.wait()
        while not running.join():
            pass


def machine(rank, work, ranks, plugs, store):
    """Be one machine of the network."""
    if CUT:
        new_network()
        plugs.wait()
        plugs.wait()  # eth0 is there
        sh(f"ip address add 10.0.0.{rank + 1}/24 dev eth0")
        sh("ip link set eth0 up")
        cut("eth0")  # what this rank sends
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if CUT else "lo"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    work(rank)
    dist.destroy_process_group()
