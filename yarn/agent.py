"""The agent: one in each worker container, between the job's driver and one training process.

It registers with the driver, starts the training process when told, hands orders on to it and its
words back, answers for its rendezvous (yarn/relay.py), and looks after it: an agent that ends, or
hears nothing of its driver for DRIVER_LOST_SECONDS, leaves no process behind.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from howdah.config import Config
from howdah.errors import ClusterError, HowdahError, Terminated, render
from yarn import agent_facts, agent_process, mpi_node, world
from yarn.agent_link import DriverLink
from yarn.backend import AgentBackend
from yarn.relay import Relay
from yarn.wire import Client

__all__ = ["DRIVER_LOST_SECONDS", "run"]

DRIVER_LOST_SECONDS = 15.0
"""Silence of the driver after which the agent ends its training and leaves."""
_FIND_DRIVER_SECONDS = 120.0
_SAMPLE_SECONDS = 1.0
_FAREWELL_SECONDS = 3.0


def run(config: Config, config_path: str, backend: AgentBackend) -> int:
    """Serve one container until the driver says to leave; the agent's exit code.

    To be called from the main thread. Errors are printed, and told to the driver where it can be
    reached.

    Args:
        config: the job's configuration.
        config_path: the file that training processes are started with.
        backend: how the driver is found.
    """
    try:
        return _Agent(config, config_path, backend).serve()
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        return error.exit_code


class _Agent:
    """Everything happens in the main thread, one thing after the other, out of one queue."""

    def __init__(self, config: Config, config_path: str, backend: AgentBackend) -> None:
        self._config, self._config_path = config, config_path
        self._me, self._node = backend.container_id, backend.node
        # Signal handlers put things in: a Queue's own lock could be held by what they interrupt.
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._process: agent_process.TrainingProcess | mpi_node.OrtedProcess | None = None
        self._slot: world.Slot | None = None
        self._generation = 0
        self._application = ""
        self._logs = _log_directory()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._inbox.put(("signal", got)))
        driver = backend.find_driver(_FIND_DRIVER_SECONDS)
        self._facts = agent_facts.node_facts(
            driver.address,
            driver.port,
            config.yarn.network_interface,
            gpus=config.yarn.worker.gpus,
        )
        client = Client(driver.address, driver.port, driver.key)
        ports = config.yarn.port_range
        self._relay = Relay(
            client,
            None if ports is None else range(ports[0], ports[1] + 1),
            place=self._place,
            refused=_say,
        )
        self._link = DriverLink(
            client,
            self._me,
            order=lambda order: self._inbox.put(("order", order)),
            lost=lambda: self._inbox.put(("driver lost", None)),
            patience=DRIVER_LOST_SECONDS,
        )

    def serve(self) -> int:
        """Take orders until one of them, or the driver's silence, ends it."""
        _say(f"agent {self._me} on {self._node}, pid {os.getpid()}, {self._facts}")
        self._relay.start()
        application = self._link.register(self._node, self._facts)
        if application is None:
            _say("the driver has no place for this container")
            return 0
        self._application = application
        threading.Thread(target=self._sample, name="sample", daemon=True).start()
        try:
            while True:
                kind, value = self._inbox.get()
                code = self._take(kind, value)
                if code is not None:
                    return code
        finally:
            self._end_process()
            self._link.flush(_FAREWELL_SECONDS)
            self._relay.stop()

    def _take(self, kind: str, value: Any) -> int | None:
        """Act on one thing; an exit code ends the agent."""
        if kind == "order":
            return self._obey(value)
        if kind == "ended":
            self._tell_end(*value)
        elif kind == "signal":
            name = signal.Signals(value).name
            _say(f"asked to end by {name}")
            self._link.event({"type": "leaving", "signal": name})
            return Terminated.exit_code
        elif kind == "driver lost":
            _say(f"nothing heard of the driver for {DRIVER_LOST_SECONDS:.0f} s: leaving")
            return ClusterError.exit_code
        return None

    def _obey(self, order: dict[str, Any]) -> int | None:
        kind, process = order["type"], self._process
        if kind == "leave":
            _say(f"told to leave: {order.get('why', '')}")
            return order["exit_code"]
        if kind == "start":
            self._start(order)
        elif process is None or process.number != order["process"]:
            _say(f"an order for process {order['process']}, which is not there: {kind}")
        elif kind == "world":
            self._enter(order, process)
        elif kind == "kill":
            told = agent_facts.diagnose(process.pid, process.stacks_path)
            _say(f"killing training process {process.number}: {order['why']}; {told['state']}")
            for line in told["stacks"]:
                _say(f"  {line}")
            self._link.event({"type": "diagnosis", "process": process.number, **told})
            process.kill()
        elif kind == "abandon":  # training/stopping.py: rank 0 saves, and all end
            process.terminate()
        else:  # change, stop: the process's own matter
            process.tell(order)
        return None

    def _start(self, order: dict[str, Any]) -> None:
        self._end_process()
        number = order["process"]
        stacks_path = os.path.join(self._logs, f"stacks.{number}.log")
        env = agent_process.environment(
            os.environ,
            self._config.yarn.env,
            application=self._application,
            threads=order["threads"],
            gpus=order["gpus"],
            ports=self._config.yarn.ports,
            stacks_path=stacks_path,
        )
        argv = agent_process.command(self._config_path)
        calls = {
            "heard": lambda n, message: self._link.heard(n, message),
            "ended": lambda n, code: self._inbox.put(("ended", (n, code))),
        }
        if "argv" in order:  # mpirun's daemon, which starts the training process
            ports, facts = self._config.yarn.port_range, self._facts
            span = None if ports is None else range(ports[0], ports[1] + 1)
            env |= mpi_node.mpi_environment(facts["interface"], span, facts["address"])
            daemon = order["argv"]
            self._process = mpi_node.OrtedProcess(number, daemon, argv, env, self._logs, **calls)
        else:
            self._process = agent_process.TrainingProcess(number, argv, env, self._logs, **calls)
        _say(f"training process {number} has pid {self._process.pid}")
        self._link.event({"type": "started", "process": number, "pid": self._process.pid})

    def _enter(self, order: dict[str, Any], process: agent_process.TrainingProcess) -> None:
        self._slot = world.Slot(**order["slot"])
        self._generation = order["generation"]
        yarn = self._config.yarn
        env = world.variables(
            self._slot,
            relay_port=self._relay.port,
            interface=self._facts["interface"],
            gloo_timeout_seconds=yarn.gloo_timeout,
            elastic=yarn.elastic,
            controller=yarn.controller,
        )
        _say(f"rank {self._slot.rank} of {self._slot.size} in generation {self._generation}")
        process.tell(
            {"type": "world", "generation": self._generation, "env": env, "keep": self._slot.keep}
        )

    def _place(self) -> tuple[int, str]:
        slot = self._slot
        return (self._generation, slot.response()) if slot is not None else (0, "")

    def _tell_end(self, number: int, code: int) -> None:
        process = self._process
        if process is None or process.number != number:
            return
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        _say(f"training process {number} has ended: {how}")
        self._link.event(
            {
                "type": "exited",
                "process": number,
                "exit_code": code,
                "failure": process.failure,
                "lines": agent_facts.tail(process.log) if code else [],
            }
        )

    def _end_process(self) -> None:
        if self._process is not None and self._process.alive:
            self._process.kill()
            self._process.wait(_FAREWELL_SECONDS)

    def _sample(self) -> None:
        """Tell how the process fares by the kernel, also when it is silent itself."""
        while True:
            process = self._process
            if process is not None:
                state = agent_facts.process_state(process.pid)
                self._link.sampled(process.number, state)
            time.sleep(_SAMPLE_SECONDS)


def _log_directory() -> str:
    """Where the cluster collects a container's logs; elsewhere, the working directory."""
    directory = os.environ.get("LOG_DIRS", "").split(",")[0] or os.getcwd()
    os.makedirs(directory, exist_ok=True)
    return directory


def _say(line: str) -> None:
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    print(f"{stamp} {line}", file=sys.stderr, flush=True)
