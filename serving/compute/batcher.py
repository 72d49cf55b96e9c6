"""The queue and the threads that compute: texts of many requests in batches by tokens.

Requests come from the event loop, and their results go back to it. All texts of a request are
classified by one generation: the one that is current when they are encoded.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from howdah.core import threads
from howdah.data.splits.planner import pad_multiple, padded_length
from howdah.serving.compute.batching import choose, retry_seconds
from howdah.serving.compute.generation import Generation
from howdah.serving.compute.metrics import Metrics
from howdah.serving.compute.refusals import Broken, QueueFull, Refusal
from howdah.serving.prediction.classify import usable
from howdah.serving.prediction.rows import Prediction, Row

_ENCODED_AT_ONCE, _CHARACTERS_AT_ONCE = 64, 131_072
"""Texts, and characters of them, that are encoded between two batches, so that a long queue does
not delay a batch."""
_KEPT, _KEPT_CHARACTERS = 8, 2000
_RATE_SECONDS = 5.0


@dataclass(eq=False)
class Work:
    """A request's texts, and their predictions."""

    rows: Sequence[Row]
    key: str | None = None
    """Requests with one key are answered by one of several models; None: by any."""
    candidates: Sequence[Generation] = ()
    """The models that may answer, where there are several (serving/deployment/dispatch.py)."""
    began: float = field(default_factory=time.monotonic)
    dropped: bool = False
    """True once the client is gone or its time is over: its texts are not computed."""
    generation: Generation | None = None
    """Generation that answers; None until the texts are cleaned."""
    predictions: list[Prediction | None] = field(default_factory=list)
    failure: Refusal | None = None
    cleaned: deque[tuple[int, str]] = field(default_factory=deque)
    """(number, text) of the texts to encode; only the thread that holds `_turn` touches them."""
    open: int = 0
    """Number of texts without a prediction."""
    finished: bool = False
    """True once the work has been handed back to the event loop."""
    done: Callable[[], None] = lambda: None
    """Called in the event loop."""


@dataclass(eq=False)
class _Text:
    """An encoded text that waits."""

    work: Work
    number: int
    ids: np.ndarray


class Batcher:
    """Computes what is submitted; only the event loop calls `submit` and `drop`.

    Args:
        first: the generation that answers at first.
        budget: largest number of tokens of a batch.
        most: largest number of texts that wait or are computed; more are refused.
        workers: threads that compute, each a batch of its own.
        wait: seconds that a batch with room waits for more texts.
        metrics: where batches and predictions are counted.
        call_soon: hands a function to the event loop, from any thread.
        answered: called in the computing thread after each batch, with (generation, row, ids,
            prediction) of each text; it must be quick and must not raise.
        say: takes a line.
    """

    def __init__(
        self,
        first: Generation,
        *,
        budget: int,
        most: int,
        workers: int,
        wait: float,
        metrics: Metrics,
        call_soon: Callable[[Callable[[], None]], None],
        answered: Callable[[list[tuple[Generation, Row, np.ndarray, Prediction]]], None],
        say: Callable[[str], None],
    ) -> None:
        self._generation, self._budget, self._most, self._wait = first, budget, most, wait
        self._workers = workers
        self._metrics, self._call_soon, self._answered = metrics, call_soon, answered
        self._say = say
        self._turn = threading.Lock()
        """Held by the thread that takes arrivals, encodes and chooses a batch; only that thread
        touches _encoding and _waiting."""
        self._changed = threading.Condition()
        """Guards what the event loop and all threads change."""
        self._arrived: deque[Work] = deque()
        self._held = 0
        self._encoding: deque[Work] = deque()
        """Requests with texts that are not encoded yet, taken in turn."""
        self._waiting: list[_Text] = []
        self._several = False
        """True if the last batch had texts of several requests."""
        self._stop = False
        self._kept: deque[Row] = deque(maxlen=_KEPT)
        self._rate, self._rate_since, self._rate_texts = 0.0, time.monotonic(), 0
        self._failure_logged = 0.0
        self._progress = time.monotonic()
        """Time when texts were last encoded, computed, handed back, or came to an empty queue."""
        metrics.serving(first)

    # ------------------------------------------------------------------- from the event loop
    @property
    def generation(self) -> Generation:
        """Generation that answers new requests."""
        return self._generation

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Those that answer new requests: one."""
        return (self._generation,)

    @property
    def held(self) -> int:
        """Number of texts that wait or are computed."""
        return self._held

    @property
    def stalled_seconds(self) -> float:
        """Seconds since texts were last encoded or computed while texts wait; 0.0 if none wait."""
        with self._changed:
            return time.monotonic() - self._progress if self._held else 0.0

    def submit(self, work: Work) -> None:
        """Queue a request's texts.

        Raises:
            QueueFull: there is no room.
        """
        with self._changed:
            if self._held + len(work.rows) > self._most:
                raise QueueFull(
                    "too many texts are waiting",
                    seconds=retry_seconds(self._held, self._rate),
                    expected=f"at most {self._most} in the queue",
                    got=f"{self._held} waiting, {len(work.rows)} more",
                    remedy="ask again after Retry-After seconds, or start more servers",
                )
            if not self._held:
                now = time.monotonic()
                self._rate_since += now - self._progress  # the rate is that of times with texts
                self._progress = now
            self._held += len(work.rows)
            self._arrived.append(work)
            self._changed.notify()
        self._metrics.waiting.set(self._held)

    def drop(self, work: Work) -> None:
        """Skip the texts of this request that are not computed yet."""
        with self._changed:
            work.dropped = True
            self._changed.notify()

    # -------------------------------------------------------------------- from other threads
    def swap(self, generation: Generation) -> None:
        """Answer requests that are encoded from now on by this generation."""
        with self._changed:
            self._generation = generation
        self._metrics.serving(generation)

    def kept(self) -> list[Row]:
        """Return the beginnings of the last classified texts, to try a new version with."""
        with self._changed:
            return list(self._kept)

    def start(self) -> None:
        """Start the computing threads; a failure outside of the model ends the process."""
        for number in range(self._workers):
            threads.start(
                self._run, name=f"compute {number}", failed=threads.end_process, say=self._say
            )

    def stop(self) -> None:
        """End the threads after their batches."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ the computing threads
    def _run(self) -> None:
        while True:
            with self._turn:
                batch = self._choose()
            if batch is None:
                return
            self._compute(batch)

    def _choose(self) -> list[_Text] | None:
        """Wait for texts, and take the next batch of them; None once the server stops."""
        while True:
            arrived = self._next()
            if arrived is None:
                return None
            for work in arrived:
                self._clean(work)
            self._encode_some()
            self._forget_dropped()
            if self._waiting and not self._worth_waiting():
                return self._take()

    def _next(self) -> list[Work] | None:
        """Take what has arrived, about _ENCODED_AT_ONCE texts; wait if there is nothing to do."""
        with self._changed:
            while not (self._stop or self._arrived or self._encoding or self._waiting):
                self._changed.wait()
            if self._stop:
                return None
            taken, count, characters = [], 0, 0
            while self._arrived and count < _ENCODED_AT_ONCE and characters < _CHARACTERS_AT_ONCE:
                taken.append(self._arrived.popleft())
                count += len(taken[-1].rows)
                characters += sum(len(row.text or "") for row in taken[-1].rows)
            return taken

    def _clean(self, work: Work) -> None:
        """Clean a request's texts; one that cannot be classified gets its prediction here."""
        work.generation = self._generation
        model = work.generation.model
        cleaned: list[str | Prediction] = []
        try:
            for row in work.rows:
                if work.dropped:
                    self._finish([work])
                    return
                cleaned.append(usable(model, row))
                self._moved()
        except BaseException as error:  # noqa: BLE001 - the request fails, the server goes on
            self._fail([work], error)
            return
        work.predictions = [None if isinstance(one, str) else one for one in cleaned]
        work.cleaned.extend((n, one) for n, one in enumerate(cleaned) if isinstance(one, str))
        work.open = len(work.cleaned)
        if work.open:
            self._encoding.append(work)
        else:
            self._finish([work])

    def _encode_some(self) -> None:
        """Encode at most _CHARACTERS_AT_ONCE characters, a text of each request in turn.

        A request of long texts thus delays a short one by no more than its own share. Between two
        portions the thread computes, and drops the requests that no client waits for any more.
        """
        texts: list[tuple[Work, int, str]] = []
        characters = 0
        while self._encoding:
            work = self._encoding[0]
            if work.dropped:
                self._encoding.popleft()
                self._finish([work])
                continue
            if texts and (
                len(texts) >= _ENCODED_AT_ONCE
                or characters + len(work.cleaned[0][1]) > _CHARACTERS_AT_ONCE
                or work.generation is not texts[0][0].generation
            ):
                break
            self._encoding.popleft()
            number, text = work.cleaned.popleft()
            texts.append((work, number, text))
            characters += len(text)
            if work.cleaned:
                self._encoding.append(work)
        if texts:
            self._tokenize(texts)

    def _tokenize(self, texts: list[tuple[Work, int, str]]) -> None:
        """Encode texts of one generation."""
        try:
            ids_N = texts[0][0].generation.model.encode([text for _, _, text in texts])
        except BaseException as error:  # noqa: BLE001 - one by one, to fail only the bad request
            works = {id(work): work for work, _, _ in texts}
            if len(works) == 1:
                self._fail(list(works.values()), error)
                return
            for work in works.values():
                self._tokenize([one for one in texts if one[0] is work])
            return
        self._moved()
        for (work, number, _), ids in zip(texts, ids_N, strict=True):
            self._waiting.append(_Text(work, number, ids))
        with self._changed:
            for work, number, _ in texts:
                row = work.rows[number]
                if number == 0 and row.text:
                    self._kept.append(Row("0", row.text[:_KEPT_CHARACTERS], pair=row.pair))

    def _moved(self) -> None:
        with self._changed:
            self._progress = time.monotonic()

    def _forget_dropped(self) -> None:
        gone = {id(one.work): one.work for one in self._waiting if one.work.dropped}
        if gone:
            self._waiting = [one for one in self._waiting if not one.work.dropped]
            self._finish(list(gone.values()))

    def _worth_waiting(self) -> bool:
        """Wait once for other requests if the batch has room for them; True if some arrived."""
        oldest = self._waiting[0]
        left = oldest.work.began + self._wait - time.monotonic()
        tokens = sum(len(one.ids) for one in self._waiting)
        if left <= 0 or not self._several or tokens >= self._budget:
            return False
        with self._changed:
            if not (self._arrived or self._stop):
                self._changed.wait(left)
            return bool(self._arrived) or self._stop

    def _take(self) -> list[_Text]:
        """Take the next batch out of the waiting texts; all of it is of one generation."""
        generation = self._waiting[0].work.generation
        numbers = [n for n, one in enumerate(self._waiting) if one.work.generation is generation]
        # Lengths are padded as the model pads them, so that it does not split the batch again.
        model = generation.model
        multiple = 1 if model.own_width else pad_multiple(model.gpu)
        sizes = [len(self._waiting[number].ids) for number in numbers]
        lengths = [padded_length(size, multiple, model.positions) for size in sizes]
        indexes = choose(lengths, self._budget, alike=model.own_width)
        chosen = {numbers[index] for index in indexes}
        batch = [self._waiting[number] for number in sorted(chosen)]
        self._waiting = [one for n, one in enumerate(self._waiting) if n not in chosen]
        self._several = len({id(one.work) for one in batch}) > 1
        return batch

    def _compute(self, batch: list[_Text]) -> None:
        generation = batch[0].work.generation
        began = time.monotonic()
        for one in batch:
            self._metrics.queued.observe(began - one.work.began)
        try:
            scores_NC = generation.model.scores_of_ids([one.ids for one in batch])
            labels = generation.model.rule.answers(scores_NC)
        except BaseException as error:  # noqa: BLE001 - the requests fail, the server goes on
            self._fail(list({id(one.work): one.work for one in batch}.values()), error)
            return
        seconds = time.monotonic() - began
        answers, complete = [], []
        for one, label, scores_C in zip(batch, labels, scores_NC, strict=True):
            row = one.work.rows[one.number]
            answers.append((generation, row, one.ids, Prediction(row.id, label, scores_C)))
        with self._changed:  # another thread may have other texts of the same request
            for one, (_, _, _, prediction) in zip(batch, answers, strict=True):
                one.work.predictions[one.number] = prediction
                one.work.open -= 1
                if one.work.open == 0:
                    complete.append(one.work)
            self._count(len(batch))
        self._finish(complete)
        self._metrics.batch([len(one.ids) for one in batch], seconds)
        self._answered(answers)

    def _count(self, texts: int) -> None:
        """Measure the rate of the last seconds, for Retry-After."""
        self._rate_texts += texts
        seconds = time.monotonic() - self._rate_since
        if seconds > _RATE_SECONDS or not self._rate:
            self._rate = self._rate_texts / max(seconds, 1e-3)
            self._rate_since, self._rate_texts = time.monotonic(), 0

    def _fail(self, works: list[Work], error: BaseException) -> None:
        now = time.monotonic()
        if now - self._failure_logged > 60:  # where and what, once a minute; never a user's text
            self._failure_logged = now
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self._say(
                f"the model failed on a request: {type(error).__name__} in"
                f" {frame.filename}:{frame.lineno}"
            )
        for work in works:
            work.dropped = True  # some of its texts may still wait
            work.failure = Broken(
                "the model failed on this request",
                got=type(error).__name__,
                remedy="try one text at a time; see the server's log",
            )
        self._metrics.errors.labels("failed").inc(len(works))
        self._finish(works)

    def _finish(self, works: list[Work]) -> None:
        with self._changed:
            works = list({id(work): work for work in works if not work.finished}.values())
            for work in works:
                work.finished = True
            self._held -= sum(len(work.rows) for work in works)
            self._progress = time.monotonic()
        if not works:
            return
        self._metrics.waiting.set(self._held)

        def resolve() -> None:
            for work in works:
                work.done()

        self._call_soon(resolve)
