"""From rows of `raw_requests` to distinct prompts in prefix order, within given memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.deployment import Model
from acdc_dagster.prefix.identity import (
    Settings,
    hash_head,
    request_hash,
    room_for_answer,
    settings_of,
    too_long,
)
from acdc_dagster.prefix.runs import HASH, Run, Sorted, Spill, merged
from acdc_dagster.prefix.segments import DIGEST, Growing, IdOrder, Segments
from acdc_dagster.prefix.sequences import Sequences, starts_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.text.rendering import Rendering
from acdc_dagster.prefix.tokens.tokenizer import PromptTokenizer
from acdc_dagster.requests.body import CHAT, EMBEDDINGS, Body, ChatBody, Refused, parse_body
from acdc_dagster.requests.plain import plain_body
from acdc_dagster.requests.rejected import Rejection


class Sorter:
    """Takes rows of `raw_requests` in any order and gives them back sorted and distinct.

    Args:
        tokenizer: Turns texts into ids.
        chat: The model's chat template.
        model: Gives the context length, and is part of each request's hash.
        defaults: The model's own sampling defaults.
        salt: Tells requests of different partitions apart that are meant to get different answers.
        memory: Bytes that the rows held in memory may take; more are spilled to disk.

    Attributes:
        refused: Rows that only the tokenizer or the chat template could refuse.
        requests: Rows that can run.
        distinct: Requests among them that differ; known when all are sorted.
        spilled_bytes: Written to disk.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        chat: ChatTemplate,
        model: Model,
        defaults: dict[str, Any],
        salt: str,
        memory: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._model = model
        self._settings = _Settings(model, defaults)
        self._salt = salt
        self._memory = memory
        special = tokenizer.cuts.values()
        self._special = special
        self._order = IdOrder(tokenizer.ids, special)
        self._rendering = Rendering(chat, list(tokenizer.cuts))
        self._spills: list[Spill] = []
        self._start_run()
        self.refused: list[Rejection] = []
        self.requests = 0
        self.tokens = 0  # of all prompts, also of those that repeat one
        self.distinct = 0
        self.spilled_bytes = 0

    def add(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Take rows of `raw_requests`.

        Returns:
            The rows of `request_map` for those that can run.

        Raises:
            DisagreementError: Start again with the same tokenizer.
        """
        if raw.is_empty():
            return _mapped(raw, np.empty((0,), dtype=(np.void, HASH)))
        rows = _Rendered(
            self._rendering, self._chat, self._settings, self._model, self._tokenizer.longest, raw
        )
        self._take_pieces(self._tokenizer.encode(self._rendering.fresh(), chat=rows.chat))
        pieces = Sequences(self._piece_segments.values, starts_of(self._piece_widths.values))
        numbers = np.array(rows.pieces, dtype=np.int64)
        found = pieces.take(numbers).joined(starts_of(np.array(rows.widths, dtype=np.int64)))
        counts = starts_of(self._segments.lengths[found.tokens])
        lengths = counts[found.offsets[1:]] - counts[found.offsets[:-1]]
        fits = self._fitting(raw, rows, lengths)
        kept = np.array(rows.kept, dtype=np.int64)[fits]
        found = found.take(np.flatnonzero(fits))
        sampling = self._settings.samplings(
            np.array(rows.settings, dtype=np.int64)[fits], lengths[fits]
        )
        ids = raw["custom_id"].gather(kept)
        hashes = self._hashes(found, sampling, ids)
        self._run.add(found, hashes, sampling)
        self.requests += len(kept)
        self.tokens += int(lengths[fits].sum())
        mapped = _mapped(raw[kept], hashes)
        if self._run.bytes_held > self._memory:
            self._spill()
        return mapped

    def sorted(self) -> Iterator[Sorted]:
        """All distinct requests in prefix order; ends the sorter's use."""
        if self._spills:
            self._spill()
            frames = merged(self._spills, self._order, self._memory // 8)
        else:
            frames = self._run.sorted(self._settings.texts)
        for frame in frames:
            self.distinct += len(frame.tokens)
            yield frame

    @property
    def limited(self) -> int:
        """Requests that can run, but with less room in the context than their `max_tokens`."""
        return self._settings.limited

    def _start_run(self) -> None:
        self._rendering.forget()
        self._segments = Segments(self._order, self._tokenizer.ids, self._special)
        self._piece_segments, self._piece_widths = Growing(np.int64), Growing(np.int64)
        self._run = Run(self._order, self._segments)

    def _spill(self) -> None:
        if len(self._run):
            spill = Spill(self._run.sorted(self._settings.texts), self._order)
            self._spills.append(spill)
            self.spilled_bytes += spill.bytes
        self._start_run()

    def _take_pieces(self, pieces: Sequences) -> None:
        segments = self._segments.add(pieces)
        self._piece_segments.extend(segments.tokens)
        self._piece_widths.extend(segments.lengths)

    def _fitting(
        self, raw: pl.DataFrame, rows: "_Rendered", lengths: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of the rendered rows fit into the context; the others are refused."""
        self.refused.extend(rows.refused)
        fits = (lengths > 0) & (lengths + rows.least <= self._model.context_length)
        unfit: list[int] = np.flatnonzero(~fits).tolist()
        for at in unfit:
            try:
                room_for_answer(int(lengths[at]), self._model, rows.least)
            except Refused as error:
                self.refused.append(_rejection(raw.row(rows.kept[at], named=True), error))
        return fits

    def _hashes(
        self, rows: Sequences, sampling: NDArray[np.int32], custom_ids: pl.Series
    ) -> NDArray[Any]:
        digests = memoryview(self._segments.digests[rows.tokens].tobytes())
        edges = (rows.offsets * DIGEST).tolist()
        found = bytearray()
        numbers: list[int] = sampling.tolist()
        for at, (number, custom_id) in enumerate(zip(numbers, custom_ids, strict=True)):
            head = self._settings.heads[number]
            if head is None:  # asked twice, it is to be answered twice
                salt = f"{self._salt}/{custom_id}"
                head = hash_head(self._model, self._settings.texts[number], salt)
            found += request_hash(digests[edges[at] : edges[at + 1]], head)
        return np.frombuffer(bytes(found), dtype=(np.void, HASH))


class _Settings:
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


class _Rendered:
    """Rows of `raw_requests` as numbers of pieces.

    Attributes:
        chat: Whether they are chat requests; one partition has one endpoint.
        least: Tokens that an answer has at least.
        kept: Rows that were rendered,
        pieces: their pieces, end to end,
        widths: how many each has,
        settings: and the number of its settings.
        refused: The other rows.
    """

    def __init__(
        self,
        rendering: Rendering,
        chat: ChatTemplate,
        settings: _Settings,
        model: Model,
        longest: int,
        raw: pl.DataFrame,
    ) -> None:
        self._rendering = rendering
        self._template = chat
        self._all_settings = settings
        self._model = model
        self._longest = longest
        self.chat = str(raw["endpoint"][0]) == CHAT
        self.kept: list[int] = []
        self.pieces: list[int] = []
        self.widths: list[int] = []
        self.settings: list[int] = []
        self.refused: list[Rejection] = []
        endpoint = str(raw["endpoint"][0])
        self.least = 0 if endpoint == EMBEDDINGS else 1
        for at, body in enumerate(raw["body"]):
            try:
                pieces, number = self._plainly(body) or self._fully(endpoint, body)
            except Refused as error:
                self.refused.append(_rejection(raw.row(at, named=True), error))
                continue
            self.kept.append(at)
            self.pieces.extend(pieces)
            self.widths.append(len(pieces))
            self.settings.append(number)

    def _plainly(self, raw: str) -> tuple[list[int], int] | None:
        if not self.chat:
            return None
        if self._longest and len(raw) > self._model.context_length * self._longest:
            return None
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
        return pieces, number

    def _fully(self, endpoint: str, raw: str) -> tuple[list[int], int]:
        body = parse_body(endpoint, raw)
        text = self._template.render(body) if isinstance(body, ChatBody) else body.text
        if self._longest and len(text) > self._model.context_length * self._longest:
            # Known without tokenising what may be megabytes.
            raise too_long(f"at least {len(text) // self._longest}", self._model)
        pieces = self._rendering.whole(text, cut=self.chat)
        return pieces, self._all_settings.add(None, body)


def _mapped(raw: pl.DataFrame, hashes: NDArray[Any]) -> pl.DataFrame:
    return raw.select("custom_id", "line", "input_rows").with_columns(request_hash=hex_of(hashes))


def hex_of(hashes: NDArray[Any]) -> pl.Series:
    """Request hashes as 32 hexadecimal digits."""
    width = np.full(len(hashes), HASH, dtype=np.int64)
    data = Sequences(np.frombuffer(hashes.tobytes(), dtype=np.uint8), starts_of(width))
    return data.as_binary().bin.encode("hex")


def _rejection(row: dict[str, Any], refused: Refused) -> Rejection:
    named = Refused(refused.code, refused.message, row["custom_id"])
    original = row["body"].encode()
    return Rejection.of(named, row["source"], row["line"], original, row["input_rows"])
