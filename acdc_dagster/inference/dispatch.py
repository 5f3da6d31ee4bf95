"""Which requests the engine gets next, and which of them kills it.

While all goes well the engine has a bounded window of requests, in the given order. When it dies,
one of those that it had may be the reason, or none. They are asked again in two halves, each by
itself; a half that kills the engine again is halved again, until one request is left that dies
alone twice. Each death so costs at most half a window of waiting, and innocent requests are
answered meanwhile.
"""

import time
from collections import deque
from collections.abc import Iterator

from acdc_dagster.inference.engines.protocol import Request

# Requests given to the engine for each that it can run at once, so that a free place never waits
# for the worker, even when a whole batch ends in one step.
_WINDOW = 2
# A request is the reason if the engine died so often while it had nothing else.
_DEATHS_ALONE = 2


class Dispatch:
    """The requests that are left, those that the engine has, and those under suspicion.

    Args:
        requests: In the order in which they are to run.
        max_num_seqs: Requests that the engine runs at once.
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
            while self._next is not None and len(self._given) + len(taken) < _WINDOW * self._size:
                taken.append(self._next)
                self._next = next(self._requests, None)
        elif not self._given:
            taken = self._suspects.popleft()
        now = time.monotonic()
        self._given.update((request.request_hash, (request, now)) for request in taken)
        return taken

    def answered(self, request_hash: str) -> bool:
        """Note an answer; False if nobody waits for it (any more)."""
        return self._given.pop(request_hash, None) is not None

    def overdue(self) -> list[str]:
        """Take back the requests that the engine has had for too long."""
        if self._seconds is None:
            return []
        latest = time.monotonic() - self._seconds
        late = [name for name, (_, since) in self._given.items() if since < latest]
        for name in late:
            del self._given[name]
        return late

    def waiting(self) -> list[str]:
        """Take back the requests that the engine has and cannot have begun.

        It begins them in the order in which it got them.
        """
        late = list(self._given)[self._size :]
        for name in late:
            del self._given[name]
        return late

    def died(self) -> str | None:
        """Note that the engine died.

        Returns:
            The request that killed it, if that is clear now; it is not asked again.
        """
        suspects = [request for request, _ in self._given.values()]
        self._given.clear()
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
