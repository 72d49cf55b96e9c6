"""Limits of connections, and the end of requests, with a server that has no model."""

import asyncio
import logging
from types import SimpleNamespace

import uvicorn
from uvicorn.server import ServerState

from howdah.serving import server as servers
from howdah.serving.http.connection import connection_class


def test_a_refused_connection_is_told_the_limit_that_it_exceeds(monkeypatch):
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)

    async def app(scope, receive, send):
        await asyncio.Event().wait()

    async def refusal(most: int, most_of_address: int) -> bytes:
        kind = connection_class(
            head_seconds=60, most=most, most_of_address=most_of_address, opened=lambda count: None
        )
        config = uvicorn.Config(app, http=kind, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        writers = []
        try:
            for _ in range(2):  # each is busy with a request
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                writers.append(writer)
            while len(state.tasks) < 2:
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            return await asyncio.wait_for(reader.read(), 30)
        finally:
            for writer in writers:
                writer.close()
            for task in list(state.tasks):
                task.cancel()
            server.close()

    async def run() -> None:
        answer = await refusal(most=10, most_of_address=2)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"at most 2 of one address" in answer
        assert b"at most 2)" in await refusal(most=2, most_of_address=10)

    asyncio.run(run())


def test_a_request_may_have_its_answer_in_the_moment_in_which_the_grace_ends(monkeypatch):
    monkeypatch.setattr(servers, "GRACE_SECONDS", 0.0)
    lines = []

    async def run() -> list[bool]:
        answered, waiting = (asyncio.get_running_loop().create_future() for _ in range(2))
        answered.set_result(None)  # its request's task has not run since
        server = servers._Server.__new__(servers._Server)
        server.state = SimpleNamespace(running=2, waiting={answered, waiting}, draining=False)
        server._metrics = SimpleNamespace(ready=SimpleNamespace(set=lambda value: None))
        server._say = lines.append
        await server._drain()
        return [waiting.done(), server.state.draining]

    assert asyncio.run(run()) == [True, True]
    assert lines == ["ending after 2 running requests",
                     "the grace period is over: 2 requests are refused"]  # fmt: skip
