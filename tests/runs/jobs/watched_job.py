"""What tests of jobs read in a status, wherever the job runs."""


class WatchedJob:
    """Needs `wait(condition, what)`, which gives the status that fulfils it."""

    def rank(self, number):
        """A rank's line in the status, once it has a process."""
        status = self.wait(
            lambda s: any(r["rank"] == number and r["pid"] for r in s["ranks"]), f"rank {number}"
        )
        return next(one for one in status["ranks"] if one["rank"] == number)


def in_step(status, ranks):
    """So many ranks make up the world, and each has taken a step."""
    stepping = sum(one["state"] == "in" and bool(one["step"]) for one in status["ranks"])
    return status["world_size"] == ranks and stepping == ranks
