"""`howdah train --np N` while its job's driver ends."""

import socket

from howdah.cli import local_job
from howdah.core import threads


class Job:
    """A job whose driver has a page, and whose file says that it runs."""

    def __init__(self, port):
        self.status = {"page": f"http://127.0.0.1:{port}/", "state": "running"}

    def driver_status(self):
        return self.status


def test_a_page_that_ends_in_the_middle_of_its_answer_is_not_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        threads.start(answer, name="page", failed=threads.REPORT)
        job = Job(server.getsockname()[1])
        assert local_job._live(job) == job.status
