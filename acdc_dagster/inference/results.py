"""Results on their way into the table: collected into chunks, committed while the engine works."""

import threading
import time
from collections.abc import Iterable
from queue import Queue
from typing import Any

from msgspec import structs

from acdc_dagster.deployment import Commit
from acdc_dagster.inference.engines.protocol import Answer
from acdc_dagster.tables import Appender, TableError

# Chunks that may wait for a slow storage before the engine gets nothing new.
_WAITING = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Results:
    """Collects answers and commits them in a thread of its own, in order, each exactly once.

    While the storage refuses, a chunk is tried again and again for `storage_seconds`, and the
    engine works on until some chunks wait.

    Args:
        appender: Of the shard.
        stamp: Columns that all rows have.
        commit: When a chunk is full.
        storage_seconds: How long to try.
    """

    def __init__(
        self, appender: Appender, stamp: dict[str, Any], commit: Commit, storage_seconds: float
    ) -> None:
        self._appender = appender
        self._stamp = stamp
        self._limits = commit
        self._patience = storage_seconds
        self._answers: list[Answer] = []
        self._bytes = 0
        self._since = time.monotonic()
        self._chunks: Queue[list[Answer] | None] = Queue()
        self._failure: Exception | None = None
        self._giving_up = threading.Event()
        self.trouble = ""  # why the last try to commit failed; empty once one succeeds
        self.answers = 0  # in this run, committed or not
        self._committer = threading.Thread(target=self._commit_all, daemon=True)
        self._committer.start()

    @property
    def behind(self) -> bool:
        """Whether so much waits for the storage that the engine should get nothing new."""
        return self._chunks.qsize() >= _WAITING

    def add(self, answers: Iterable[Answer]) -> None:
        """Take answers (or none), and hand a chunk on if it is full or its time is over.

        Raises:
            ShardTakenError: Another worker has taken the shard over.
            TableError: The storage refused for too long; what is not committed is lost.
        """
        self._check()
        for answer in answers:
            self._answers.append(answer)
            self._bytes += _size(answer)
            self.answers += 1
            if len(self._answers) >= self._limits.rows or self._bytes >= self._limits.mib * 2**20:
                self._hand_on()
        if not self._answers:
            self._since = time.monotonic()
        elif time.monotonic() - self._since >= self._limits.seconds:
            self._hand_on()

    def close(self) -> None:
        """Commit what is there, and wait for it. Raises as `add` does."""
        if self._answers:
            self._hand_on()
        self._chunks.put(None)
        self._committer.join()
        self._check()

    def give_up(self) -> None:
        """Do not try a chunk again that the storage refuses; for who is told to end now."""
        self._giving_up.set()

    def _hand_on(self) -> None:
        self._chunks.put(self._answers)
        self._answers, self._bytes, self._since = [], 0, time.monotonic()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _commit_all(self) -> None:
        while (answers := self._chunks.get()) is not None:
            if self._failure is not None:
                continue
            try:
                self._commit(answers)
            except Exception as error:
                self._failure = error

    def _commit(self, answers: list[Answer]) -> None:
        stamp = {**self._stamp, "chunk": self._appender.next_chunk}
        rows = [{**structs.asdict(answer), **_failure(answer), **stamp} for answer in answers]
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                self._appender.append(rows)
                self.trouble = ""
                return
            except TableError as error:
                left = began + self._patience - time.monotonic()
                if left <= 0 or self._giving_up.is_set():
                    raise
                self.trouble = error.problem
                self._giving_up.wait(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)


def _size(answer: Answer) -> int:
    texts = (answer.text, answer.reasoning, answer.choices, answer.logprobs)
    return 200 + sum(len(text) for text in texts if text) + 4 * len(answer.embedding or ())


def _failure(answer: Answer) -> dict[str, str]:
    """An answer that neither ended nor was cut is none, whatever text came with it."""
    if answer.error_class is not None or answer.finish_reason in ("stop", "length"):
        return {}
    reason = f"the engine gave the request up: finish_reason {answer.finish_reason}"
    return {"error_class": "permanent", "error_message": reason}
