"""Rows of `raw_requests` on their way into the sorter: as numbers of pieces and of settings."""

from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.models import Model
from acdc_dagster.prefix.identity import Settings, hash_head, settings_of, too_long
from acdc_dagster.prefix.image_store import ImageStore
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.text.rendering import Rendering
from acdc_dagster.requests.body import CHAT, EMBEDDINGS, Body, ChatBody, Refused, parse_body
from acdc_dagster.requests.images import image_of
from acdc_dagster.requests.plain import plain_body, plain_message
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.repeated import Repeated, last_message


class SharedSettings:
    """The few settings that the many requests of a job share, by number."""

    def __init__(self, model: Model, defaults: dict[str, Any]) -> None:
        self._model = model
        self._defaults = defaults
        self._by_key: dict[Any, int] = {}
        self._settings: list[Settings] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self.texts: list[str] = []
        self.heads: list[bytes | None] = []
        self.limited = 0

    def number(self, key: Any) -> int | None:
        """Of the settings that were given this key."""
        return self._by_key.get(key)

    def add(self, key: Any, body: Body) -> int:
        """Number the settings of a body, to be found again by `key` if there is one."""
        settings = settings_of(body, self._defaults)
        text = settings.sampling(settings.asked or 0)
        number = self._by_key.setdefault(text, len(self._settings))
        if number == len(self._settings):
            self._settings.append(settings)
        if key is not None:
            self._by_key[key] = number
        return number

    def samplings(
        self, settings: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Numbers in `texts` for prompts with these settings and of these lengths."""
        most = 2**62  # for those that may fill the context
        all_asked = [most if s.asked is None else s.asked for s in self._settings]
        asked = np.array(all_asked, dtype=np.int64)[settings]
        tokens = np.minimum(asked, self._model.context_length - lengths)
        self.limited += int(((tokens < asked) & (asked < most)).sum())
        pairs, inverse = np.unique(np.stack([settings, tokens]), axis=1, return_inverse=True)
        numbers = [self._sampling(*pair) for pair in pairs.T.tolist()]
        return np.array(numbers, dtype=np.int32)[inverse.ravel()]

    def _sampling(self, settings: int, tokens: int) -> int:
        number = self._numbers.get((settings, tokens))
        if number is None:
            number = self._numbers[(settings, tokens)] = len(self.texts)
            asked = self._settings[settings]
            text = asked.sampling(tokens)
            self.texts.append(text)
            self.heads.append(hash_head(self._model, text) if asked.deterministic else None)
        return number


class Known(NamedTuple):
    """What bodies have in common that differ in their last message only.

    Attributes:
        roles: Of all messages.
        pieces: Numbers of the pieces of one of them.
        settings: The number of the settings.
    """

    roles: tuple[str, ...]
    pieces: list[int]
    settings: int


class Rendered:
    """Rows of `raw_requests` as numbers of pieces.

    Attributes:
        chat: Whether they are chat requests; one partition has one endpoint.
        least: Tokens that an answer has at least.
        kept: Rows that were rendered,
        pieces: their pieces, end to end,
        widths: how many each has,
        settings: and the number of its settings.
        images: How many images each has,
        image_tokens: and at least how many tokens they add to the prompt.
        refused: The other rows.
    """

    def __init__(
        self,
        rendering: Rendering,
        known: Repeated[Known],
        chat: ChatTemplate,
        settings: SharedSettings,
        model: Model,
        longest: int,
        ids: int,
        raw: pl.DataFrame,
        store: ImageStore,
    ) -> None:
        self._rendering = rendering
        self._known = known
        self._template = chat
        self._all_settings = settings
        self._model = model
        self._longest = longest
        self._store = store
        self._ids = ids
        self.chat = str(raw["endpoint"][0]) == CHAT
        self.kept: list[int] = []
        self.pieces: list[int] = []
        self.widths: list[int] = []
        self.settings: list[int] = []
        self.images: list[int] = []
        self.image_tokens: list[int] = []
        self.refused: list[Rejection] = []
        endpoint = str(raw["endpoint"][0])
        self.least = 0 if endpoint == EMBEDDINGS else 1
        for at, body in enumerate(raw["body"]):
            try:
                pieces, number, images, tokens = self._rendered(endpoint, body)
            except Refused as error:
                self.refused.append(rejection_of(raw.row(at, named=True), error))
                continue
            self.kept.append(at)
            self.pieces.extend(pieces)
            self.widths.append(len(pieces))
            self.settings.append(number)
            self.images.append(images)
            self.image_tokens.append(tokens)

    def _rendered(self, endpoint: str, raw: str) -> tuple[list[int], int, int, int]:
        """Pieces, the number of the settings, how many images, and the tokens that they add."""
        plain = self._plainly(raw)
        return (*plain, 0, 0) if plain is not None else self._fully(endpoint, raw)

    def _plainly(self, raw: str) -> tuple[list[int], int] | None:
        if not self.chat:
            return None
        if self._longest and len(raw) > self._model.context_length * self._longest:
            return None
        last = last_message(raw)
        known = None if last is None else self._known.get(last)
        if last is not None and known is not None:
            message = plain_message(raw[last.start : last.stop])
            if message is not None and message.role == known.roles[-1]:
                again = self._rendering.again(known.roles, known.pieces, message.content)
                return None if again is None else (again, known.settings)
        body = plain_body(raw)
        if body is None:
            return None
        pieces = self._rendering.plain(body.messages)
        if pieces is None:
            return None
        key = body.settings()
        number = self._all_settings.number(key)
        if number is None:
            number = self._all_settings.add(key, parse_body(CHAT, raw))
        if last is not None:
            roles = tuple([message.role for message in body.messages])
            self._known.learn(raw, last, Known(roles, pieces, number))
        return pieces, number

    def _fully(self, endpoint: str, raw: str) -> tuple[list[int], int, int, int]:
        body = parse_body(endpoint, raw)
        urls = body.image_urls() if isinstance(body, ChatBody) else []
        vision = self._store.vision
        if urls and vision is None:
            raise Refused(
                "unsupported_content",
                f"The messages hold an image, and {self._model.name} is not known to take any; "
                "leave it out or choose a multimodal model.",
            )
        text = self._template.render(body) if isinstance(body, ChatBody) else body.text
        if not isinstance(text, str):
            if max(text) >= self._ids:
                raise Refused(
                    "invalid_value",
                    f"The prompt has the token id {max(text)}, and those of {self._model.name} are "
                    f"below {self._ids}.",
                )
            return self._rendering.given(text), self._all_settings.add(None, body), 0, 0
        if self._longest and len(text) > self._model.context_length * self._longest:
            # Known without tokenising what may be megabytes.
            raise too_long(f"at least {len(text) // self._longest}", self._model)
        if vision is not None and urls:
            images = [image_of(url) for url in urls]
            hashes = [image.sha256 for image in images]
            pieces = self._rendering.with_images(text, vision.token, hashes)
            tokens = sum(self._store.add(image) for image in images)
        else:
            pieces, tokens = self._rendering.whole(text, cut=self.chat), 0
        return pieces, self._all_settings.add(None, body), len(urls), tokens


def rejection_of(row: dict[str, Any], refused: Refused) -> Rejection:
    """What `rejected` says of a row of `raw_requests`."""
    named = Refused(refused.code, refused.message, row["custom_id"])
    original = row["body"].encode()
    return Rejection.of(named, row["source"], row["line"], original, row["input_rows"])
