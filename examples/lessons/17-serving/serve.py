"""The same model behind FastAPI in 40 lines and behind `howdah serve`, under the same load."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import fastapi
import numpy as np
import onnxruntime
import pandas as pd
from pydantic import BaseModel
from tokenizers import Tokenizer


# ---- FastAPI in 40 lines: uvicorn --factory serve:build
class Request(BaseModel):
    """What a client sends: FastAPI refuses everything else with 422."""

    texts: list[str]


def build() -> fastapi.FastAPI:
    """Open the export once, and answer from it."""
    export = os.environ["EXPORT"]
    session = onnxruntime.InferenceSession(f"{export}/model.onnx")
    tokenizer = Tokenizer.from_file(f"{export}/tokenizer.json")
    tokenizer.enable_padding()
    tokenizer.enable_truncation(64)
    with open(f"{export}/config.json", encoding="utf-8") as file:
        labels = json.load(file)["id2label"]
    app = fastapi.FastAPI()

    @app.post("/v1/classify")
    def classify(request: Request) -> dict:  # each request is a batch, in a thread of a pool
        encoded = tokenizer.encode_batch(request.texts)
        ids, mask = zip(*((one.ids, one.attention_mask) for one in encoded), strict=True)
        inputs = {"input_ids": np.array(ids), "attention_mask": np.array(mask)}
        scores = np.exp(session.run(["logits"], inputs)[0])
        scores /= scores.sum(1, keepdims=True)
        best = zip(scores.argmax(1), scores.max(1), strict=True)
        return {"predictions": [{"label": labels[str(n)], "score": float(p)} for n, p in best]}

    return app


# ---- the load
CLIENTS, REQUESTS = 16, 400


async def ask(port: int, text: str) -> tuple[float, str]:
    """One request on a connection of its own: (seconds, label)."""
    body = json.dumps({"texts": [text]}).encode()
    head = "POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: "
    head += f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    answer = (await reader.read()).split(b"\r\n\r\n", 1)[1]
    writer.close()
    return time.perf_counter() - began, json.loads(answer)["predictions"][0]["label"]


async def load(port: int, texts: list[str]) -> tuple[float, list[tuple[float, str]]]:
    """All texts by 16 clients, each of which waits for its answer: (seconds, answers)."""
    turn = asyncio.Semaphore(CLIENTS)

    async def one(text: str) -> tuple[float, str]:
        async with turn:
            return await ask(port, text)

    began = time.perf_counter()
    answers = await asyncio.gather(*map(one, texts))
    return time.perf_counter() - began, answers


@contextlib.contextmanager
def server(name: str, export: str) -> Iterator[int]:
    """The port of a server that answers; the server ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet = ["--app-dir", sys.path[0], "--log-level", "error"]
    uvicorn = ["uvicorn", "--factory", "serve:build", *quiet]
    howdah = ["howdah", "serve", "--model", export, "--set", "serve.threads=2"]
    command = {"FastAPI": uvicorn, "howdah serve": howdah}[name]
    env = os.environ | {"EXPORT": export}
    process = subprocess.Popen([*command, "--port", str(port)], stdout=sys.stderr, env=env)
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.1)
    yield port
    process.terminate()
    process.wait()


if __name__ == "__main__":
    texts = (list(pd.read_parquet("later.parquet").text) * 2)[:REQUESTS]
    labels: dict[str, list[str]] = {}
    for name in ("FastAPI", "howdah serve"):
        with server(name, sys.argv[1]) as port:
            asyncio.run(load(port, texts[:40]))  # warm
            seconds, answers = asyncio.run(load(port, texts))
            if name == "howdah serve":
                urllib.request.urlretrieve(f"http://127.0.0.1:{port}/metrics", "metrics.txt")
        times = 1000 * np.array([one for one, _ in answers])
        labels[name] = [label for _, label in answers]
        print(f"requests a second, {name} = {len(times) / seconds:.0f}")
        print(f"median of a request, {name} = {np.median(times):.0f} ms")
        print(f"99th percentile of a request, {name} = {np.percentile(times, 99):.0f} ms")
    print(f"requests to each server = {REQUESTS}")
    equal = sum(a == b for a, b in zip(*labels.values(), strict=True))
    print(f"equal labels of both servers = {equal}")
