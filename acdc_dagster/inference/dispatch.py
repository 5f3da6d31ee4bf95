"""Which requests the engine gets next, and which of them kills it.

While all goes well the engine has a bounded window of requests, in the given order. When it dies,
one of those that it had may be the reason, or none. They are asked again in two halves, each by
itself; a half that kills the engine again is halved again, until one request is left that dies
alone twice. Each death so costs at most half a window of waiting, and innocent requests are
answered meanwhile.
"""

import json
import time
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

from acdc_dagster.inference.engines.protocol import Request

# Sequences given to the engine for each that it can run at once, so that a free place never waits
# for the worker, even when a whole batch ends in one step.
_WINDOW = 2
# A request is the reason if the engine died so often while it had nothing else.
_DEATHS_ALONE = 2


@lru_cache(1024)  # a job's requests have few different samplings
def sequences_of(sampling: str) -> int:
    """Places that a request takes in the engine's batch.

    One for each of its choices, but for a greedy one, which is computed once.
    """
    asked = json.loads(sampling)
    return asked.get("n", 1) if asked.get("temperature") else 1


class Dispatch:
    """The requests that are left, those that the engine has, and those under suspicion.

    Args:
        requests: In the order in which they are to run.
        max_num_seqs: Sequences that the engine runs at once.
        request_seconds: The engine has a request so long at most; None for ever.
    """

    def __init__(
        self, requests: Iterator[Request], max_num_seqs: int, request_seconds: float | None
    ) -> None:
        self._requests = requests
        self._next = next(requests, None)
        self._size = max_num_seqs
        self._seconds = request_seconds
        self._given: dict[str, tuple[Request, float]] = {}
        self._sequences = 0  # of the requests that are given
        self._probing = False  # nothing new is given out until all suspects are answered
        self._suspects: deque[list[Request]] = deque()
        self._deaths_alone: dict[str, int] = {}

    @property
    def given(self) -> int:
        """Requests that the engine has."""
        return len(self._given)

    @property
    def more(self) -> bool:
        """Whether anything is not answered yet."""
        return bool(self._given or self._suspects or self._next)

    def take(self) -> list[Request]:
        """Requests for the engine to add now."""
        taken: list[Request] = []
        if not self._given and not self._suspects:
            self._probing = False
        if not self._probing:
            sequences = self._sequences
            while self._next is not None and sequences < _WINDOW * self._size:
                taken.append(self._next)
                sequences += sequences_of(self._next.sampling)
                self._next = next(self._requests, None)
        elif not self._given:
            taken = self._suspects.popleft()
        now = time.monotonic()
        self._sequences += sum(sequences_of(request.sampling) for request in taken)
        self._given.update((request.request_hash, (request, now)) for request in taken)
        return taken

    def answered(self, request_hash: str) -> bool:
        """Note an answer; False if nobody waits for it (any more)."""
        return self._taken_back(request_hash)

    def overdue(self) -> list[str]:
        """Take back the requests that the engine has had for too long."""
        if self._seconds is None:
            return []
        latest = time.monotonic() - self._seconds
        late = [name for name, (_, since) in self._given.items() if since < latest]
        for name in late:
            self._taken_back(name)
        return late

    def waiting(self) -> list[str]:
        """Take back the requests that the engine has and cannot have begun.

        It begins them in the order in which it got them.
        """
        widths = (sequences_of(request.sampling) for request, _ in self._given.values())
        before = accumulate(widths, initial=0)
        late = [name for name, at in zip(self._given, before, strict=False) if at >= self._size]
        for name in late:
            self._taken_back(name)
        return late

    def died(self) -> str | None:
        """Note that the engine died.

        Returns:
            The request that killed it, if that is clear now; it is not asked again.
        """
        suspects = [request for request, _ in self._given.values()]
        self._given.clear()
        self._sequences = 0
        if not suspects:
            return None
        self._probing = True
        if len(suspects) > 1:
            middle = (len(suspects) + 1) // 2
            self._suspects.extendleft([suspects[middle:], suspects[:middle]])
            return None
        name = suspects[0].request_hash
        self._deaths_alone[name] = self._deaths_alone.get(name, 0) + 1
        if self._deaths_alone[name] == _DEATHS_ALONE:
            return name
        self._suspects.appendleft(suspects)
        return None

    def _taken_back(self, request_hash: str) -> bool:
        """Have the engine's place free again; False if it did not have the request."""
        request, _ = self._given.pop(request_hash, (None, 0.0))
        if request is None:
            return False
        self._sequences -= sequences_of(request.sampling)
        return True
