"""Rendering a job's prompts as pieces that recur, so that each distinct piece is tokenised once.

A chat template is run once for each *shape* of conversation (its roles in order), with marks in
place of the contents. What stands between the marks is the same for all conversations of that
shape, so a prompt is put together from it and the contents, without the template. A prompt is cut
into pieces before special tokens, where tokens on both sides do not depend on each other.

Whatever a template does with contents beyond putting them in, stripped or as they are, is noticed,
and such a conversation goes through the template itself.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from secrets import randbits
from typing import Any, NamedTuple, cast

import numpy as np
from xxhash import xxh3_128_intdigest

from acdc_dagster.prefix.pieces import Piece
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.text.watched import watched
from acdc_dagster.requests.body import ChatBody, Refused
from acdc_dagster.requests.message import Message
from acdc_dagster.requests.plain import PlainMessage


class _Piece(NamedTuple):
    """A piece with one content in it.

    Attributes:
        content: Which message's.
        stripped: Whether the template strips it.
        numbers: Numbers of the pieces of this kind, by a hash of the content; -1 where only the
            template itself can render it.
        before: Text before the content,
        after: and after it.
    """

    content: int
    stripped: bool
    numbers: dict[int, int]
    before: str
    after: str


class _Shape(NamedTuple):
    """How a conversation of some roles is rendered.

    Attributes:
        opening: Text before the first piece,
        pieces: a piece for each message,
        closing: and the text after the last.
    """

    opening: str
    pieces: tuple[_Piece, ...]
    closing: str


class Rendering:
    """Gives prompts as numbers of pieces, and the text of each piece when it is new.

    Args:
        chat: The model's chat template.
        cuts: Special tokens before which a text may be cut (see `PromptTokenizer.cuts`).
    """

    def __init__(self, chat: ChatTemplate, cuts: Sequence[str]) -> None:
        self._chat = chat
        longest_first = sorted(cuts, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first))) if cuts else None
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        self._watched = watched(chat.source or "")
        # The hash's seed is nobody's to know: contents cannot be made to collide on purpose.
        self._seed = randbits(64)
        self._numbers: dict[tuple[str, str], dict[int, int]] = {}
        self._images: dict[bytes, int] = {}
        self._count = 0
        self._fresh: list[Piece] = []
        self._given: dict[int, int] = {}  # numbers by a hash of the ids

    def fresh(self) -> list[Piece]:
        """The pieces that were new since the last call, by their numbers in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def forget(self) -> None:
        """Start numbering anew: every piece is new again."""
        for numbers in self._numbers.values():
            numbers.clear()
        self._images.clear()
        self._given.clear()
        self._count, self._fresh = 0, []

    def plain(self, messages: Sequence[PlainMessage]) -> list[int] | None:
        """Piece numbers of a plain conversation; None if only `whole` can render it."""
        roles = tuple([message.role for message in messages])
        shape = self._shapes.get(roles, ...)
        if shape is ...:
            shape = self._shapes[roles] = self._shape(messages)
        if shape is None:
            return None
        found = self._numbers_of_text(shape.opening)
        for piece in shape.pieces:
            number = self._number(piece, messages[piece.content].content)
            if number < 0:
                return None
            found.append(number)
        return found + self._numbers_of_text(shape.closing)

    def again(self, roles: tuple[str, ...], pieces: list[int], content: str) -> list[int] | None:
        """Piece numbers of a conversation that differs from another in its last message only.

        Args:
            roles: The roles in both.
            pieces: What `plain` gave for the other.
            content: Of the last message.

        Returns:
            None if only `whole` can render it.
        """
        shape = self._shapes.get(roles)
        number = self._number(shape.pieces[-1], content) if shape else -1
        if shape is None or number < 0:
            return None
        at = len(pieces) - (2 if shape.closing else 1)
        return [*pieces[:at], number, *pieces[at + 1 :]]

    def _number(self, piece: _Piece, content: str) -> int:
        _, stripped, numbers, before, after = piece
        if stripped:
            content = content.strip()
        key = xxh3_128_intdigest(content.encode(), self._seed)
        number = numbers.get(key)
        if number is None:
            number = -1 if self._is_watched(content) else self._new(before + content + after)
            numbers[key] = number
        return number

    def given(self, ids: list[int]) -> list[int]:
        """The piece number of a prompt that is given as token ids."""
        piece = np.array(ids, dtype=np.uint32)
        key = xxh3_128_intdigest(piece.tobytes(), self._seed)
        number = self._given.get(key)
        if number is None:
            number = self._given[key] = self._new(piece)
        return [number]

    def _new(self, piece: Piece) -> int:
        self._fresh.append(piece)
        self._count += 1
        return self._count - 1

    def whole(self, text: str, *, cut: bool) -> list[int]:
        """Piece numbers of a rendered prompt; one piece if it is not to be `cut`."""
        pieces = self._pieces(text) if cut else [text]
        return [number for piece in pieces for number in self._numbers_of_text(piece)]

    def with_images(self, text: str, token: str, images: Sequence[bytes]) -> list[int]:
        """Piece numbers of a rendered prompt, each image's own before the token for its place.

        Args:
            text: The prompt.
            token: In whose place an image comes; a special token that cuts.
            images: Hashes, in order.

        Raises:
            Refused: There are not as many places as images.
        """
        first, *others = text.split(token)
        if len(others) != len(images):
            raise Refused(
                "unsupported_content",
                f"The prompt has {len(images)} images and {len(others)} places for one: a text "
                f"must not have {token} in it, and the chat template must show each image.",
            )
        found = self.whole(first, cut=True)
        for image, piece in zip(images, others, strict=True):
            if image not in self._images:
                self._images[image] = self._new(image)
            found += [self._images[image], *self.whole(token + piece, cut=True)]
        return found

    def _numbers_of_text(self, piece: str) -> list[int]:
        """The number of a text that is a piece; none if it is empty."""
        if not piece:
            return []
        numbers = self._numbers_of("", "")
        key = xxh3_128_intdigest(piece.encode(), self._seed)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = self._new(piece)
        return [number]

    def _numbers_of(self, before: str, after: str) -> dict[int, int]:
        return self._numbers.setdefault((before, after), {})

    def _pieces(self, text: str) -> Iterator[str]:
        bounds = [0, *(start for start in self._cuts(text) if start), len(text)]
        return (text[a:b] for a, b in pairwise(bounds) if a < b)

    def _is_watched(self, content: str) -> bool:
        return not content.strip() or any(word in content for word in self._watched)

    def _shape(self, messages: Sequence[PlainMessage]) -> _Shape | None:
        """The pieces of this shape, seen to fit `messages`; None if they cannot be told."""
        if self._cut is None:
            return None
        roles = [message.role for message in messages]
        marks = [f"m{number}x{self._seed:x}" for number in range(len(roles))]
        plain = self._between(roles, marks, marks)
        if plain is None:
            return None
        stripped: list[bool] = []
        for number, mark in enumerate(marks):
            padded = [*marks]
            padded[number] = f" \n{mark}\n "
            if self._between(roles, padded, padded) == plain:
                stripped.append(False)
            elif self._between(roles, padded, marks) == plain:
                stripped.append(True)
            else:
                return None
        pieces: list[_Piece] = []
        at = max(self._cuts(plain[0]), default=0)
        opening, before = plain[0][:at], plain[0][at:]
        for number, after in enumerate(plain[1:]):
            cuts = self._cuts(after)
            last = number == len(roles) - 1
            if not last and not cuts:
                return None
            at = min(cuts, default=len(after)) if last else max(cuts)
            numbers = self._numbers_of(before, after[:at])
            pieces.append(_Piece(number, stripped[number], numbers, before, after[:at]))
            before = after[at:]
        shape = _Shape(opening, tuple(pieces), before)
        return shape if self._renders(messages, shape) else None

    def _cuts(self, text: str) -> list[int]:
        """Where a text may be cut."""
        return [match.start() for match in self._cut.finditer(text)] if self._cut else []

    def _between(self, roles: list[str], contents: list[str], marks: list[str]) -> list[str] | None:
        """What the template puts around `marks` where the messages hold `contents`."""
        try:
            text = self._chat.render(_conversation(roles, contents))
        except Refused:
            return None
        found: list[str] = []
        for mark in marks:
            before, seen, text = text.partition(mark)
            if not seen or mark in text:
                return None
            found.append(before)
        return [*found, text]

    def _renders(self, messages: Sequence[PlainMessage], shape: _Shape) -> bool:
        """Whether the shape gives the template's own text for a real conversation."""
        contents = [message.content for message in messages]
        if any(self._is_watched(content) for content in contents):
            contents = [f"A word, {number} more." for number in range(len(contents))]
        put = "".join(
            piece.before
            + (contents[piece.content].strip() if piece.stripped else contents[piece.content])
            + piece.after
            for piece in shape.pieces
        )
        try:
            roles = [message.role for message in messages]
            return shape.opening + put + shape.closing == self._chat.render(
                _conversation(roles, contents)
            )
        except Refused:
            return False


def _conversation(roles: list[str], contents: list[str]) -> ChatBody:
    turns = zip(roles, contents, strict=True)
    messages = [Message(role=cast("Any", role), content=content) for role, content in turns]
    return ChatBody(model="", messages=messages)
