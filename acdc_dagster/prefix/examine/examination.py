"""Examining a source before anything runs: what it holds, and what its order is worth."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.models import Model, found_model
from acdc_dagster.prefix.examine.cache import predicted_hit_rate, simulated_hit_rate
from acdc_dagster.prefix.examine.columns import columns_of
from acdc_dagster.prefix.examine.diagnosis import Diagnosis, diagnose
from acdc_dagster.prefix.examine.groups import top_groups
from acdc_dagster.prefix.examine.report import Group, HitRates, Lengths, Report, about_the_order
from acdc_dagster.prefix.order import hit_rate, sharing
from acdc_dagster.prefix.runs import HASH, Sorted
from acdc_dagster.prefix.segments import Growing
from acdc_dagster.prefix.sequences import Positions, Sequences
from acdc_dagster.prefix.sorter import Sorter, hex_of
from acdc_dagster.prefix.stage import about_limited, sampling_defaults, sorting_memory
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import (
    ByteEstimate,
    DisagreementError,
    ModelTokenizer,
    PromptTokenizer,
)
from acdc_dagster.requests.batch import Source
from acdc_dagster.requests.intake import Intake, RepeatedIdsError
from acdc_dagster.requests.limit import may_be_rejected, rows_of_source
from acdc_dagster.requests.prompts.prompt import Fields
from acdc_dagster.requests.rejected import rejected_rows

_NO_LIMIT = 2**31 - 1
# How most models lay a conversation out; for estimates where no model is at hand.
_LAYOUT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
# Tokens that are kept to look for what spoils sharing; of a larger job every second stretch, …
_KEPT_TOKENS = 2**26


def examine(
    source: Source,
    name: str,
    model_name: str | None,
    tokenizer: Path | None,
    block_size: int,
    kv_tokens: int,
    max_rejected: float | None = None,
    fields: Fields | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Examine a source.

    Args:
        source: The requests.
        name: What the report calls it.
        model_name: The model that each request must name; the first one's if None.
        tokenizer: Model folder or tokenizer.json. If None, the deployment's model that the
            requests name, else its only model, else an estimate of four bytes a token.
        block_size: Tokens in a KV block.
        kv_tokens: Tokens that the simulated prefix cache holds.
        max_rejected: As the job declares it.
        fields: Of the prompt, if the source is a table and the prompt is simple.
        on_progress: Gets a line on what is done, very often.

    Raises:
        SourceError: The source cannot be read.
        ModelError: The given tokenizer cannot be used.
    """
    intake = Intake(source, model_name)
    chosen: _Chosen | None = None
    while True:
        try:
            frames = _told(intake, on_progress)
            first = next(frames, None)
            named = str(first["model"][0]) if first is not None and first.height else model_name
            chosen = chosen or _Chosen(tokenizer, named or "")
            sorter, hashes, repeats = chosen.sort(chain([] if first is None else [first], frames))
            break
        except (RepeatedIdsError, DisagreementError):
            continue
    order = _Order(sorter.sorted(), on_progress)
    warnings = [*intake.warnings, *chosen.warnings, *about_limited(sorter.limited)]
    if intake.input_rows == 0:
        warnings.append("There are no rows; a job would succeed with empty tables.")
    if order.repeated_samples:
        warnings.append(
            "Repeated requests that are sampled (temperature above 0, no seed) are meant to get "
            "answers of their own: each is computed, and only its prompt is shared."
        )
    # A repeated row counts as often as it stands in the source.
    place = order.places(hashes)
    times = np.bincount(place, weights=repeats.values, minlength=len(order.lcp)).astype(np.int64)
    lcp, lengths = _repeated(order.lcp, order.lengths, times)
    file_order = _file_order(place, repeats, times)
    rates = HitRates(
        block_size,
        kv_tokens,
        file_order=simulated_hit_rate(lcp, lengths, block_size, kv_tokens, file_order),
        random_order=predicted_hit_rate(lcp, lengths, block_size, kv_tokens),
        prefix_order=simulated_hit_rate(lcp, lengths, block_size, kv_tokens),
        bound=hit_rate(lcp, lengths, block_size),
    )
    rejected = rejected_rows([*intake.rejections, *sorter.refused])
    return Report(
        name=name,
        rows=intake.input_rows,
        valid=len(lcp),
        rejected=rejected.select("source", "line", "code", "message").to_dicts(),
        duplicates=len(lcp) - len(order.lcp) + order.repeated_samples,
        lengths=Lengths.of(lengths),
        sharing=sharing(lcp, lengths),
        hit_rates=rates,
        groups=[
            Group(group.requests, group.tokens, group.tokens_saved)
            for group in top_groups(lcp, lengths, at_most=5)
        ],
        advice=[
            *_about_a_varying_piece(order.diagnosis(), chosen.tokenizer, lengths, fields),
            *about_the_order(len(lcp), rates, sharing(lcp, lengths)),
        ],
        warnings=warnings,
        can_run=may_be_rejected(rows_of_source(rejected), intake.input_rows, max_rejected),
    )


def _told(intake: Intake, on_progress: Callable[[str], None]) -> Iterator[pl.DataFrame]:
    for frame in intake.frames():
        on_progress(f"{intake.input_rows:,} rows read")
        yield frame


class _Chosen:
    """The tokenizer to count with, and the model whose limits hold."""

    def __init__(self, given: Path | None, named: str) -> None:
        self.warnings: list[str] = []
        self.tokenizer, self.model = self._choose(given, named)

    def sort(self, frames: Iterator[pl.DataFrame]) -> "tuple[Sorter, Growing, Growing]":
        """The requests in a sorter, and in source order their hashes and how often each stands."""
        estimate = isinstance(self.tokenizer, ByteEstimate)
        sorter = Sorter(
            self.tokenizer,
            ChatTemplate.of(_LAYOUT) if estimate else ChatTemplate(self.model.path),
            self.model,
            {} if estimate else sampling_defaults(self.model),
            salt="",
            memory=sorting_memory(),
        )
        hashes, repeats = Growing(np.dtype((np.void, HASH))), Growing(np.int64)
        for frame in frames:
            mapped = sorter.add(frame)
            codes = b"".join(mapped["request_hash"].str.decode("hex"))
            hashes.extend(np.frombuffer(codes, dtype=(np.void, HASH)))
            # Chunks of a split row are no input rows, but requests all the same.
            repeats.extend(mapped["input_rows"].clip(1).to_numpy())
        return sorter, hashes, repeats

    def _choose(self, given: Path | None, named: str) -> tuple[PromptTokenizer, Model]:
        if given is not None:
            if given.is_dir() and (given / "config.json").is_file():
                model = found_model(named, given, None, "--tokenizer")
            else:
                model = Model(named, given.parent, "", _NO_LIMIT)
            return ModelTokenizer(given), model
        try:
            deployment = Deployment.load()
            models, names = deployment.environment.models, deployment.environment.model_names
            name = named if named in names or len(models) != 1 else next(iter(models))
            model = deployment.model(name)
        except (DeclarationError, ModelError):
            if named:
                self.warnings.append(
                    f"No tokenizer for model {named!r} is at hand: tokens are estimated at four "
                    "bytes each. Give --tokenizer for exact figures."
                )
            return ByteEstimate(), Model(named, Path(), "", _NO_LIMIT)
        if named and name != named:
            self.warnings.append(
                f"Model {named!r} is not declared here; counted with {name}'s tokenizer."
            )
        return ModelTokenizer(model.path), model


class _Order:
    """What is kept of the sorted requests: their hashes, lengths and LCP, and some tokens.

    Attributes:
        repeated_samples: Requests with the prompt and the settings of another, computed all the
            same since they are sampled.
    """

    def __init__(self, frames: Iterator[Sorted], on_progress: Callable[[str], None]) -> None:
        hashes = Growing(np.dtype((np.void, HASH)))
        lcp, lengths = Growing(np.int64), Growing(np.int64)
        self._stretches: list[Sequences] = []
        self._every, kept, self.repeated_samples = 1, 0, 0
        asked: set[str] = set()
        for number, frame in enumerate(frames):
            same = frame.lcp == frame.tokens.lengths
            if len(lengths):
                same[0] &= frame.tokens.lengths[0] == lengths.values[-1]
            same[1:] &= frame.tokens.lengths[1:] == frame.tokens.lengths[:-1]
            for equal, sampling in zip(same.tolist(), frame.sampling, strict=True):
                if not equal:
                    asked.clear()
                self.repeated_samples += sampling in asked
                asked.add(sampling)
            hashes.extend(frame.hashes)
            lcp.extend(frame.lcp)
            lengths.extend(frame.tokens.lengths)
            on_progress(f"{len(lengths):,} distinct requests sorted")
            if number % self._every == 0:
                self._stretches.append(frame.tokens)
                kept += len(frame.tokens.tokens)
                if kept > _KEPT_TOKENS:
                    self._stretches = self._stretches[::2]
                    self._every *= 2
                    kept = sum(len(some.tokens) for some in self._stretches)
        self._hashes, self.lcp, self.lengths = hashes.values, lcp.values, lengths.values

    def places(self, hashes: Growing) -> Positions:
        """The position in prefix order of each hash."""
        if not len(hashes):
            return np.empty(0, dtype=np.int64)
        known = pl.DataFrame({"hash": hex_of(self._hashes)}).with_row_index("at")
        asked = pl.DataFrame({"hash": hex_of(hashes.values)})
        found = asked.join(known, on="hash", how="left", maintain_order="left")["at"]
        return found.to_numpy().astype(np.int64)

    def diagnosis(self) -> Diagnosis | None:
        """Why the requests share less than they could, if so."""
        kept = Sequences.concat(self._stretches)
        return diagnose(kept.tokens, kept.offsets) if len(kept) else None


def _repeated(lcp: Positions, lengths: Positions, times: Positions) -> tuple[Positions, Positions]:
    """Each request as often as it stands in the source; a repeat shares all of its prompt."""
    all_lengths = np.repeat(lengths, times)
    all_lcp = all_lengths.copy()
    all_lcp[np.cumsum(times) - times] = lcp
    return all_lcp, all_lengths


def _file_order(place: Positions, repeats: Growing, times: Positions) -> Positions:
    """For each row of the source in its order, its position among all rows in prefix order."""
    rows = np.repeat(place, repeats.values)
    stable = np.argsort(rows, kind="stable")
    found = np.empty(len(rows), dtype=np.int64)
    found[stable] = np.arange(len(rows))
    return found


def _about_a_varying_piece(
    found: Diagnosis | None, tokenizer: PromptTokenizer, lengths: Positions, fields: Fields | None
) -> list[str]:
    if found is None:
        return []
    columns: tuple[str, ...] = ()
    if fields is not None:
        first, second = (tokenizer.decode([*found.beginning, *ids]) for ids in found.example)
        columns = columns_of(fields, first, second)
    named = f" ({', '.join(f'column {name!r}' for name in columns)})" if columns else ""
    one, other = (tokenizer.decode(ids) for ids in found.example)
    total = int(lengths.sum())
    return [
        f"{found.affected:.0%} of the {len(lengths)} requests differ after {found.position} tokens "
        f"and go on alike soon after, as {one!r} and {other!r} do. At the end of the prompt that "
        f"piece{named} would let them share {found.tokens / total:.0%} more of all prompt "
        "tokens."
    ]
