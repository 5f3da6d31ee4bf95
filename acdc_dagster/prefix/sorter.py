"""From rows of `raw_requests` to distinct prompts in prefix order, within given memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from acdc_dagster.models import Model
from acdc_dagster.prefix.identity import hash_head, request_hash, room_for_answer
from acdc_dagster.prefix.image_keys import KEY, ImageKeys
from acdc_dagster.prefix.image_store import ImageStore
from acdc_dagster.prefix.pieces import encoded
from acdc_dagster.prefix.rendered import Known, Rendered, SharedSettings, rejection_of
from acdc_dagster.prefix.runs import HASH, Run, Sorted, Spill, merged
from acdc_dagster.prefix.segments import DIGEST, Growing, IdOrder, Segments
from acdc_dagster.prefix.sequences import Sequences, starts_of
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.text.rendering import Rendering
from acdc_dagster.prefix.tokens.tokenizer import PromptTokenizer
from acdc_dagster.requests.body import Refused
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.requests.repeated import Repeated


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
        images: What the rows show, those of refused rows too.
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
        self._settings = SharedSettings(model, defaults)
        self._heads: dict[tuple[int, str], bytes] = {}
        self._salt = salt
        self._memory = memory
        vision = chat.vision
        takes_images = vision is not None and vision.token in tokenizer.cuts
        self._keys = ImageKeys(tokenizer.ids) if takes_images else None
        self._ids = self._keys.ids if self._keys else tokenizer.ids
        self._special = [*tokenizer.cuts.values(), *([self._keys.mark] if self._keys else [])]
        self._order = IdOrder(self._ids, self._special)
        self._rendering = Rendering(chat, list(tokenizer.cuts))
        self._spills: list[Spill] = []
        self._start_run()
        self.refused: list[Rejection] = []
        self.requests = 0
        self.tokens = 0  # of all prompts, also of those that repeat one
        self.distinct = 0
        self.spilled_bytes = 0
        self.images = ImageStore(
            vision if takes_images else None,
            lambda text: len(tokenizer.encode([text], chat=True)[0]),
        )

    def add(self, raw: pl.DataFrame, apart: str = "") -> pl.DataFrame:
        """Take rows of `raw_requests`.

        Args:
            raw: The rows.
            apart: Tells these requests apart from equal ones that were taken with another text.

        Returns:
            The rows of `request_map` for those that can run.

        Raises:
            DisagreementError: Start again with the same tokenizer.
        """
        if raw.is_empty():
            return _mapped(raw, np.empty((0,), dtype=(np.void, HASH)))
        rows = Rendered(
            self._rendering,
            self._known,
            self._chat,
            self._settings,
            self._model,
            self._tokenizer.longest,
            self._tokenizer.ids,
            raw,
            self.images,
        )
        self._take_pieces(
            encoded(self._tokenizer, self._keys, self._rendering.fresh(), chat=rows.chat)
        )
        pieces = Sequences(self._piece_segments.values, starts_of(self._piece_widths.values))
        numbers = np.array(rows.pieces, dtype=np.int64)
        found = pieces.take(numbers).joined(starts_of(np.array(rows.widths, dtype=np.int64)))
        counts = starts_of(self._segments.lengths[found.tokens])
        lengths = counts[found.offsets[1:]] - counts[found.offsets[:-1]]
        lengths -= KEY * np.array(rows.images, dtype=np.int64)
        expanded = lengths + np.array(rows.image_tokens, dtype=np.int64)
        fits = self._fitting(raw, rows, expanded)
        kept = np.array(rows.kept, dtype=np.int64)[fits]
        found = found.take(np.flatnonzero(fits))
        sampling = self._settings.samplings(
            np.array(rows.settings, dtype=np.int64)[fits], expanded[fits]
        )
        ids = raw["custom_id"].gather(kept)
        hashes = self._hashes(found, sampling, ids, apart)
        self._run.add(found, hashes, sampling)
        self.requests += len(kept)
        self.tokens += int(lengths[fits].sum())
        mapped = _mapped(raw[kept], hashes)
        if self._run.bytes_held > self._memory:
            self._spill()
        return mapped

    def sorted(self) -> Iterator[Sorted]:
        """All distinct requests in prefix order; ends the sorter's use.

        Raises:
            SpaceError: There is no room for what is still in memory; raised by the call itself.
        """
        if not self._spills:
            return self._counted(self._run.sorted(self._settings.texts))
        self._spill()
        return self._counted(merged(self._spills, self._order, self._memory // 8))

    def _counted(self, frames: Iterator[Sorted]) -> Iterator[Sorted]:
        for frame in frames:
            self.distinct += len(frame.tokens)
            if self._keys is not None:
                frame = self._keys.taken_out(frame)
            yield frame

    @property
    def limited(self) -> int:
        """Requests that can run, but with less room in the context than their `max_tokens`."""
        return self._settings.limited

    def _start_run(self) -> None:
        self._rendering.forget()
        self._known = Repeated[Known]()
        self._segments = Segments(self._order, self._ids, self._special)
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
        self, raw: pl.DataFrame, rows: Rendered, lengths: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of the rendered rows fit into the context; the others are refused."""
        self.refused.extend(rows.refused)
        fits = (lengths > 0) & (lengths + rows.least <= self._model.context_length)
        unfit: list[int] = np.flatnonzero(~fits).tolist()
        for at in unfit:
            try:
                room_for_answer(int(lengths[at]), self._model, rows.least)
            except Refused as error:
                self.refused.append(rejection_of(raw.row(rows.kept[at], named=True), error))
        return fits

    def _hashes(
        self, rows: Sequences, sampling: NDArray[np.int32], custom_ids: pl.Series, apart: str
    ) -> NDArray[Any]:
        digests = memoryview(self._segments.digests[rows.tokens].tobytes())
        edges = (rows.offsets * DIGEST).tolist()
        found = bytearray()
        numbers: list[int] = sampling.tolist()
        for at, (number, custom_id) in enumerate(zip(numbers, custom_ids, strict=True)):
            head = self._settings.heads[number]
            if head is None:  # asked twice, it is to be answered twice
                salt = f"{apart or self._salt}/{custom_id}"
                head = hash_head(self._model, self._settings.texts[number], salt)
            elif apart:
                head = self._head_apart(number, apart)
            found += request_hash(digests[edges[at] : edges[at + 1]], head)
        return np.frombuffer(bytes(found), dtype=(np.void, HASH))

    def _head_apart(self, number: int, apart: str) -> bytes:
        head = self._heads.get((number, apart))
        if head is None:
            head = hash_head(self._model, self._settings.texts[number], apart)
            self._heads[number, apart] = head
        return head


def _mapped(raw: pl.DataFrame, hashes: NDArray[Any]) -> pl.DataFrame:
    return raw.select("custom_id", "line", "input_rows").with_columns(request_hash=hex_of(hashes))


def hex_of(hashes: NDArray[Any]) -> pl.Series:
    """Request hashes as 32 hexadecimal digits."""
    width = np.full(len(hashes), HASH, dtype=np.int64)
    data = Sequences(np.frombuffer(hashes.tobytes(), dtype=np.uint8), starts_of(width))
    return data.as_binary().bin.encode("hex")
