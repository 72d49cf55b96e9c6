"""The agent: one in each worker container, between the job's driver and one training process.

It registers with the driver, starts the training process on the driver's order, passes orders to it
and its messages to the driver, and serves its rendezvous (jobs/net/relay.py). An agent that ends,
or has no contact with its driver for CONTACT_SECONDS, leaves no process behind.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from howdah.attempts import Attempt
from howdah.config.model import Config
from howdah.core import threads
from howdah.core.processes import how_ended
from howdah.errors import ClusterError, HowdahError, Terminated, render
from howdah.jobs import training_process, world
from howdah.jobs.agent import facts
from howdah.jobs.agent.driver_connection import DriverConnection
from howdah.jobs.backend import AgentBackend, DriverAddress
from howdah.jobs.hang import CONTACT_SECONDS
from howdah.jobs.mpi import node as mpi_node
from howdah.jobs.net.relay import Relay
from howdah.jobs.net.wire import Client
from howdah.jobs.say import say

_DRIVER_GONE_SECONDS = 10.0
"""A driver has ended once its machine has refused every connection for this long. A driver that
is stopped or cut off does not refuse connections: they time out."""
_FIND_DRIVER_SECONDS = 120.0
_SAMPLE_SECONDS = 1.0
_EXIT_GRACE_SECONDS = 3.0


def run(config: Config, config_path: str, backend: AgentBackend) -> int:
    """Serve one container until the driver orders its agent to leave, and return the exit code.

    It must be called from the main thread, and prints errors.

    Args:
        config: the job's configuration.
        config_path: the file that training processes are started with.
        backend: finds the driver.
    """
    try:
        return _Agent(config, config_path, backend).serve()
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        return error.exit_code


class _Agent:
    """All decisions are made in the main thread, from one queue of events."""

    def __init__(self, config: Config, config_path: str, backend: AgentBackend) -> None:
        self._config, self._config_path = config, config_path
        self._me, self._node = backend.container_id, backend.node
        self._secret_env = backend.secret_env()
        # Signal handlers put events here. A queue.Queue would deadlock: the code that a handler
        # interrupts may hold its lock.
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._process: training_process.TrainingProcess | mpi_node.OrtedProcess | None = None
        self._slot: world.Slot | None = None
        self._generation = 0
        self._application = ""
        self._logs = _log_directory()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._inbox.put(("signal", got)))
        driver = backend.find_driver(_FIND_DRIVER_SECONDS)
        self._facts = facts.node_facts(
            driver.address,
            driver.port,
            config.job.network_interface,
            gpus=config.job.worker.gpus,
        )
        client = _WatchedClient(
            driver,
            on_gone=lambda: self._inbox.put(("driver gone", None)),
            seconds=min(_DRIVER_GONE_SECONDS, CONTACT_SECONDS),
        )
        self._ports = config.job.port_range
        self._relay = Relay(client, self._ports, assignment=self._assignment, refused=say)
        self._driver = DriverConnection(
            client,
            self._me,
            on_order=lambda order: self._inbox.put(("order", order)),
            on_lost=lambda: self._inbox.put(("driver lost", None)),
            patience=CONTACT_SECONDS,
        )

    def serve(self) -> int:
        """Carry out orders until one of them, or the loss of the driver, ends the agent."""
        say(f"agent {self._me} on {self._node}, pid {os.getpid()}, {self._facts}")
        self._relay.start()
        application = self._driver.register(self._node, self._facts)
        if application is None:
            say("the driver does not need this container")
            return 0
        self._application = application
        threads.start(self._sample, name="sample", failed=threads.RESTART, say=say)
        try:
            while True:
                kind, value = self._inbox.get()
                code = self._take(kind, value)
                if code is not None:
                    return code
        finally:
            self._end_process()
            self._driver.flush(_EXIT_GRACE_SECONDS)
            self._relay.stop()

    def _take(self, kind: str, value: Any) -> int | None:
        """Handle one event; an exit code ends the agent."""
        if kind == "order":
            return self._carry_out(value)
        if kind == "ended":
            self._report_end(*value)
        elif kind == "signal":
            name = signal.Signals(value).name
            say(f"received {name}: leaving")
            self._driver.event({"type": "leaving", "signal": name})
            return Terminated.exit_code
        elif kind == "driver lost":
            say(f"the driver dropped this agent, or was silent {CONTACT_SECONDS:.0f} s: leaving")
            return ClusterError.exit_code
        elif kind == "driver gone":
            say("the driver's address refuses connections: leaving")
            return ClusterError.exit_code
        return None

    def _carry_out(self, order: dict[str, Any]) -> int | None:
        kind, process = order["type"], self._process
        if kind == "leave":
            say(f"ordered to leave: {order.get('why', '')}")
            return order["exit_code"]
        if kind == "start":
            self._start(order)
        elif process is None or process.number != order["process"]:
            say(f"ignored an order for process {order['process']}, which is not running: {kind}")
        elif kind == "world":
            self._enter(order, process)
        elif kind == "kill":
            diagnosis = facts.diagnose(process.pid, process.stacks_path)
            say(f"killing training process {process.number}: {order['why']}; {diagnosis['state']}")
            for line in diagnosis["stacks"]:
                say(f"  {line}")
            self._driver.event({"type": "diagnosis", "process": process.number, **diagnosis})
            process.kill()
        elif kind == "abandon":  # training/process/stopping.py: rank 0 saves, and all end
            process.terminate()
        else:  # change, stop: for the process itself
            process.send(order)
        return None

    def _start(self, order: dict[str, Any]) -> None:
        self._end_process()
        number = order["process"]
        stacks_path = os.path.join(self._logs, f"stacks.{number}.log")
        env = training_process.environment(
            os.environ,
            self._config.job.env,
            self._secret_env,
            application=self._application,
            attempt=Attempt.of(order.get("attempt")),
            threads=order["threads"],
            gpus=order["gpus"],
            ports=self._config.job.ports,
            stacks_path=stacks_path,
        )
        argv = training_process.command(self._config_path)
        calls = {
            "on_message": self._driver.forward,
            "on_end": lambda n, code: self._inbox.put(("ended", (n, code))),
        }
        if "argv" in order:  # mpirun's daemon, which starts the training process
            interface, address = self._facts["interface"], self._facts["address"]
            env |= mpi_node.mpi_environment(interface, self._ports, address)
            daemon = order["argv"]
            self._process = mpi_node.OrtedProcess(number, daemon, argv, env, self._logs, **calls)
        else:
            self._process = training_process.TrainingProcess(number, argv, env, self._logs, **calls)
        say(f"training process {number} has pid {self._process.pid}")
        self._driver.event({"type": "started", "process": number, "pid": self._process.pid})

    def _enter(self, order: dict[str, Any], process: training_process.TrainingProcess) -> None:
        self._slot = world.Slot(**order["slot"])
        self._generation = order["generation"]
        job = self._config.job
        env = world.variables(
            self._slot,
            relay_port=self._relay.port,
            interface=self._facts["interface"],
            gloo_timeout_seconds=job.gloo_timeout,
            elastic=job.elastic,
            controller=job.controller,
        )
        say(f"rank {self._slot.rank} of {self._slot.size} in generation {self._generation}")
        process.send(
            {"type": "world", "generation": self._generation, "env": env, "keep": self._slot.keep}
        )

    def _assignment(self) -> tuple[int, str]:
        slot = self._slot
        return (self._generation, slot.response()) if slot is not None else (0, "")

    def _report_end(self, number: int, code: int) -> None:
        process = self._process
        if process is None or process.number != number:
            return
        say(f"training process {number} has ended: {how_ended(code)}")
        self._driver.event(
            {
                "type": "exited",
                "process": number,
                "exit_code": code,
                "failure": process.failure,
                "lines": facts.tail(process.log) if code else [],
            }
        )

    def _end_process(self) -> None:
        if self._process is not None and self._process.alive:
            self._process.kill()
            self._process.wait(_EXIT_GRACE_SECONDS)

    def _sample(self) -> None:
        """Report the process's state from /proc, even while the process itself is silent."""
        while True:
            process = self._process
            if process is not None:
                state = facts.process_state(process.pid)
                self._driver.sampled(process.number, state)
            time.sleep(_SAMPLE_SECONDS)


class _WatchedClient(Client):
    """A client that notices when the driver's process has ended.

    Args:
        driver: where it listens.
        on_gone: called once, when every connection has been refused for `seconds`.
        seconds: how long refusals must last.
    """

    def __init__(
        self, driver: DriverAddress, *, on_gone: Callable[[], None], seconds: float
    ) -> None:
        super().__init__(driver.address, driver.port, driver.key)
        self._on_gone, self._seconds = on_gone, seconds
        self._refused_since: float | None = None
        self._reported = False

    def call(self, path: str, message: Any, timeout: float) -> dict[str, Any]:
        try:
            answer = super().call(path, message, timeout)
        except ClusterError as error:
            self._note(_is_refusal(error))
            raise
        self._note(False)
        return answer

    def _note(self, refused: bool) -> None:
        now = time.monotonic()
        if not refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > self._seconds and not self._reported:
            self._reported = True
            self._on_gone()


def _is_refusal(error: BaseException | None) -> bool:
    """True if the driver's machine refused the connection: no process listens on that port."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _log_directory() -> str:
    """The first directory of YARN's LOG_DIRS; the working directory on other clusters."""
    directory = os.environ.get("LOG_DIRS", "").split(",")[0] or os.getcwd()
    os.makedirs(directory, exist_ok=True)
    return directory
