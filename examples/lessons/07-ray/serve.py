"""Ray Serve: two models behind one address, and a split between them: python serve.py TEXTS

The user's name decides which model answers, so that a user always gets the same one.
"""

import hashlib
import json
import os
import socket
import sys
import time
import timeit
import urllib.request

import pandas as pd
from one_node import ray_of_one_node
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

REQUESTS, USERS, SHARE = 300, 75, 0.25
texts = pd.read_parquet(sys.argv[1])
texts = texts[texts.text.str.strip() != ""].groupby("label").sample(300, random_state=0)
texts = texts.sample(frac=1, random_state=0)  # in another order
test, learn = texts[:REQUESTS], texts[REQUESTS:]


def classifier(rows: pd.DataFrame):
    """A linear model on the words of the texts."""
    model = make_pipeline(TfidfVectorizer(max_features=5000), LogisticRegression())
    return model.fit(rows.text, rows.label)


def bucket(user: str) -> float:
    """A number from 0 to 1 that is always the same for a user."""
    return int(hashlib.sha256(user.encode()).hexdigest()[:8], 16) / 2**32


class Model:
    """A deployment: one or more replicas, each a process."""

    def __init__(self, model) -> None:
        self.model = model

    def classify(self, text: str) -> tuple[str, int]:
        """The label, and which process says so."""
        return self.model.predict([text])[0], os.getpid()


class Split:
    """The deployment that answers HTTP; it asks one of the models by its handle."""

    def __init__(self, a, b, share: float) -> None:
        self.a, self.b, self.share = a, b, share

    async def __call__(self, request) -> dict:
        body = await request.json()
        to_b = bucket(body["user"]) < self.share
        label, process = await (self.b if to_b else self.a).classify.remote(body["text"])
        return {"variant": "B" if to_b else "A", "label": label, "process": process}


def ask(url: str, users: list[str]) -> pd.DataFrame:
    """The answers to all requests, with the milliseconds that each took."""
    answers = []
    for user, text in zip(users, test.text, strict=True):
        started = time.perf_counter()
        data = json.dumps({"user": user, "text": text}).encode()
        with urllib.request.urlopen(url, data=data) as answer:
            answers.append(json.load(answer) | {"ms": (time.perf_counter() - started) * 1000})
    return pd.DataFrame(answers).assign(user=users, right=lambda a: a.label == test.label.values)


a, b = classifier(learn[:150]), classifier(learn)
with ray_of_one_node(cpus=2) as ray:
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    small = serve.deployment(ray_actor_options={"num_cpus": 0.1})

    def deploy(share: float) -> None:
        """Deploy both models and the split, or replace them without a pause."""
        models = [small(Model).options(name=name).bind(m) for name, m in (("A", a), ("B", b))]
        split = small(Split).bind(*models, share)
        serve.run(split, route_prefix="/", logging_config={"log_level": "ERROR"})

    deploy(SHARE)
    url, users = f"http://127.0.0.1:{port}/", [f"user {n % USERS}" for n in range(REQUESTS)]
    by_user = ask(url, users)
    by_request = ask(url, [f"request {n}" for n in range(REQUESTS)]).assign(user=users)
    deploy(0.5)
    later = ask(url, users)

print(f"{REQUESTS} requests of {USERS} users; A learnt from 150 texts, B from {len(learn):,}.\n")
print(f"requests that B answered = {(by_user.variant == 'B').sum()}")
print(f"requests whose user's number is below {SHARE} = {sum(bucket(u) < SHARE for u in users)}")
seen = [answers.groupby("user").variant.nunique() for answers in (by_user, by_request)]
print(f"users who saw both models = {(seen[0] == 2).sum()}")
print(f"users who saw both models, drawn for each request = {(seen[1] == 2).sum()}\n")
right = by_user.groupby("variant").right
error = 1.96 * sum(right.mean() * (1 - right.mean()) / right.size()) ** 0.5
print(f"accuracy of A = {right.mean().A:.3f}")
print(f"accuracy of B = {right.mean().B:.3f}")
print(f"difference = {right.mean().B - right.mean().A:.3f}")
print(f"95% interval of the difference, to each side = {error:.3f}\n")
print("A second serve.run raises the share of B to 0.5:")
print(f"requests that B answers then = {(later.variant == 'B').sum()}")
were_b = set(by_user.user[by_user.variant == "B"])
print(f"users who left B = {len(were_b & set(later.user[later.variant == 'A']))}")
replaced = len(set(later.process) - set(by_user.process))
print(f"processes of the models that it replaced = {replaced}\n")
print(f"median of a request = {by_user.ms.median():.1f} ms")
alone = timeit.timeit(lambda: b.predict(test.text[:1]), number=100)
print(f"the model alone = {alone * 10:.1f} ms")
