"""A day's tasks one by one: a hook that answers as `howdah` does stands in for commands."""

from __future__ import annotations

from howdah.airflow.runner.runners import CommandResult

CONFIG = {"run": {"name": "words"}}


class Hook:
    """Answers commands in turn; `.asked` has them."""

    def __init__(self, *answers, **settings):
        from howdah.airflow.runner.settings import from_extra

        self.answers, self.asked, self.conn_id = list(answers), [], "test"
        self.settings = from_extra(settings, "test")
        self.run_root = "/runs"

    def call(self, arguments, **more):
        self.asked.append(list(arguments))
        answer = self.answers.pop(0)
        return CommandResult(answer.get("exit_code", 0), answer, ())

    def run(self, arguments, **more):
        from howdah.airflow import failures

        done = self.call(arguments)
        if done.code:
            raise failures.failed(done.result, done.code)
        return done.result

    def error_of(self, arguments, done):
        return done.result

    @property
    def log(self):
        import logging

        return logging.getLogger("hook")


class Ti:
    """A task instance as far as these operators ask it."""

    dag_id, run_id, task_id, map_index, log_url = "d", "r", "t", -1, "http://log"

    def __init__(self):
        self.xcoms = {}

    def xcom_push(self, key, value):
        self.xcoms[key] = value


class Store(dict):
    """A task's state."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


def made(kind, hook, **more):
    operator = kind(task_id="t", config=CONFIG, **more)
    operator._hook = hook
    return operator
