"""Bodies that differ in their last message only: what is around it is read once.

The prompts of a job mostly begin alike, so that most of what their bodies say was read before. JSON
is read from left to right: if a text before a message, the message and a text after it were one
body, then any other message between the same two texts is one too, and all else in it is the same.
"""

from secrets import randbits
from typing import Generic, NamedTuple, TypeVar

from xxhash import xxh3_128_intdigest

from acdc_dagster.requests.plain import PlainMessage, plain_body, plain_message

T = TypeVar("T")
_BEGIN, _END = '{"role"', "}]"
# Kept at a time: so many, and of what follows a message so many characters.
_MOST, _LONGEST = 2**14, 4096
# Nobody's to know: texts cannot be made to collide on purpose.
_SEED = randbits(64)
_MARK = f"m{randbits(128):x}"


class LastMessage(NamedTuple):
    """Where a body's last message lies if the body is plain.

    Attributes:
        around: Equal for two bodies with the same text before and after it.
        start: Its first character,
        stop: and the one after its last.
    """

    around: tuple[int, str]
    start: int
    stop: int


def last_message(body: str) -> LastMessage | None:
    """The likely place of the last message; None if it is not written in the usual way."""
    start = body.rfind(_BEGIN)
    stop = body.find(_END, start) + 1
    if start < 0 or not stop or len(body) - stop > _LONGEST:
        return None
    around = xxh3_128_intdigest(body[:start].encode(), _SEED), body[stop:]
    return LastMessage(around, start, stop)


class Repeated(Generic[T]):
    """What is known of bodies, by the text around their last message; of a bounded number."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], T | None] = {}

    def get(self, place: LastMessage) -> T | None:
        """What was learnt of bodies like this one, if its last message is plain as well."""
        return self._known.get(place.around)

    def learn(self, body: str, place: LastMessage, known: T) -> None:
        """Keep what holds of this plain body and does not depend on its last message.

        Only the second body of its kind is taken, so that nothing is spent on those that have none.
        """
        if place.around not in self._known:
            if len(self._known) == _MOST:
                self._known.clear()
            self._known[place.around] = None
        elif _is_last(body, place):
            self._known[place.around] = known


def _is_last(body: str, place: LastMessage) -> bool:
    """Whether the last message of a plain body lies there, seen by putting another in its place."""
    whole, last = plain_body(body), plain_message(body[place.start : place.stop])
    marked = f'{{"role":"user","content":"{_MARK}"}}'
    other = plain_body(body[: place.start] + marked + body[place.stop :])
    if whole is None or last is None or other is None:
        return False
    return (
        whole.messages == [*other.messages[:-1], last]
        and other.messages[-1] == PlainMessage("user", _MARK)
        and whole.model == other.model
        and whole.settings() == other.settings()
    )
