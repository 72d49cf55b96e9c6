"""A driver's job, its clock and its agents, without processes or a cluster."""

from howdah.jobs.driver.job import Job
from howdah.jobs.driver.workers import Limits


class Recorder:
    """DriverActions that only record what they are called with."""

    def __init__(self):
        self.orders, self.kept, self.released, self.generations, self.events = [], [], [], [], []

    def order(self, member, order):
        self.orders.append((member, order))

    def keep(self, count):
        self.kept.append(count)

    def release(self, member):
        self.released.append(member)

    def begin(self, generation):
        self.generations.append(generation)

    def event(self, what, *, routine=False):
        self.events.append(what)

    def take(self, kind):
        """The members that were given an order of this kind since the last time."""
        members = [member for member, order in self.orders if order["type"] == kind]
        self.orders = [one for one in self.orders if one[1]["type"] != kind]
        return members


LIMITS = {
    "workers": 2, "fewest": 2, "most": 2, "elastic": False, "tries": 1, "max_restarts": 10,
    "gang_seconds": 60.0, "gang_attempts": 3, "hang_seconds": 45.0, "grace_seconds": 60.0,
    "gloo_timeout_seconds": 30.0,
    "threads": 1, "gpus": 0, "contact_seconds": 60.0, "node_failures": 3,
}  # fmt: skip


class World:
    """A job, its clock and its agents."""

    def __init__(self, **limits):
        self.now = 1000.0
        self.actions = Recorder()
        self.job = Job(Limits(**{**LIMITS, **limits}), self.actions, self.now)
        self.phases = {}

    def does(self, name, phase, *, gets_on=True, busy=False):
        """A rank's process reports this phase from now on, with progress or without."""
        self.phases[name] = (phase, self.now, gets_on, busy)

    def pass_time(self, seconds, silent=()):
        """Time goes by; agents are heard of, save the silent ones."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for name, member in self.job.members.items():
                if name in silent:
                    continue
                self.job.contact(name, self.now)
                member.beat_time = self.now
                if name in self.phases:
                    phase, since, gets_on, busy = self.phases[name]
                    idle = 0.0 if gets_on else self.now - since
                    member.beat = {
                        "phase": phase, "phase_seconds": self.now - since, "idle_seconds": idle,
                        "idle_cpu_seconds": idle * busy,
                    }  # fmt: skip
            self.job.tick(self.now)

    def come(self, *names, node="n", **facts):
        return [self.job.registered(name, node, facts, self.now) for name in names]

    def report(self, name, kind, **more):
        member = self.job.members[name]
        self.job.happened(name, {"type": kind, "process": member.process, **more}, self.now)

    def train(self, *names):
        self.come(*names)
        for name in names:
            self.report(name, "ready")
        self.pass_time(1)
        self.join()

    def join(self):
        for slot in self.job.worlds.slots:
            self.report(
                slot.member, "joined", generation=self.job.worlds.generation, rank=slot.rank
            )

    def die(self, name, code=-9, failure=None):
        self.report(name, "exited", exit_code=code, failure=failure, lines=["last words"])

    def end(self):
        for name, member in self.job.members.items():
            if member.running:
                self.die(name)
        self.pass_time(20)
        assert self.job.mode == "over"


def elastic(**limits):
    return World(**{"elastic": True, "fewest": 1, "most": 3, **limits})
