"""Stage 2: render, tokenise, deduplicate and sort the valid requests of one partition."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from acdc_dagster.errors import AcdcError, DeclarationError
from acdc_dagster.job import Job
from acdc_dagster.models import Model
from acdc_dagster.prefix.image_store import ImageStats, ImageStore
from acdc_dagster.prefix.order import hit_rate, sharing
from acdc_dagster.prefix.runs import Sorted
from acdc_dagster.prefix.segments import Growing
from acdc_dagster.prefix.sequences import narrowest
from acdc_dagster.prefix.sorted_rows import sorted_rows
from acdc_dagster.prefix.sorter import Sorter
from acdc_dagster.prefix.text.chat import ChatTemplate
from acdc_dagster.prefix.tokens.tokenizer import DisagreementError, ModelTokenizer
from acdc_dagster.requests.limit import too_many_for_both_stages
from acdc_dagster.requests.rejected import rejected_rows
from acdc_dagster.requests.taken_in import another_run, taken_in_by
from acdc_dagster.schemas import row_schema
from acdc_dagster.spool import Spool
from acdc_dagster.tables import Tables

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
READ = 4096  # rows of raw_requests tokenised at a time


@dataclass(frozen=True)
class SortedStats:
    """What stage 2 did.

    Attributes:
        requests: custom_ids whose requests can run.
        distinct: Requests to run; the others repeat one of them.
        rejected: Rows of the source that only the tokenizer could refuse.
        prompt_tokens: Over distinct requests.
        sharing: Share of prompt tokens that repeat a prefix (see `order.sharing`).
        hit_rate_bound: See `order.hit_rate`.
        spilled_bytes: Written to temporary files since the job did not fit into memory.
        limited: custom_ids whose answers may have fewer tokens than their `max_tokens` asks for,
            since the prompt leaves no more of the context.
        images: What the requests show.
    """

    requests: int
    distinct: int
    rejected: int
    prompt_tokens: int
    sharing: float
    hit_rate_bound: float
    spilled_bytes: int
    limited: int
    images: ImageStats

    @property
    def warnings(self) -> list[str]:
        """What is allowed but worth knowing."""
        return [*about_limited(self.limited), *self.images.warnings]


def about_limited(requests: int) -> list[str]:
    """What to tell of so many requests that get less than their `max_tokens`; nothing of none."""
    if not requests:
        return []
    return [
        f"{requests:,} {'request asks' if requests == 1 else 'requests ask'} for a longer answer "
        "than the prompt leaves room for in the model's context, and may use what is left. Shorten "
        "the prompt, or lower max_tokens to what an answer needs."
    ]


def sort_requests(
    model: Model,
    tables: Tables,
    partition: str,
    block_size: int,
    memory: int | None = None,
    tell: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
    apart: str = "",
    evaluation: pl.DataFrame | None = None,
    job: Job | None = None,
) -> SortedStats:
    """Fill `sorted_requests`, `request_map`, `images` and this stage's part of `rejected`.

    Args:
        model: The model that answers; its tokenizer and chat template are used.
        tables: The job's tables; `raw_requests` is read.
        partition: The partition key.
        block_size: Tokens in a KV block, for the bound of the hit rate.
        memory: Bytes to sort in; what is more goes to temporary files (see `sorting_memory`).
        tell: Gets messages for whoever runs the stage.
        on_progress: Gets a line on how many requests are read or sorted, very often.
        apart: See `reuse.apart`.
        evaluation: The requests of an evaluation set, with the columns of `raw_requests`. They are
            sorted with the others and answered with them, but count as none: no row shares their
            answers.
        job: Tells how many rows may be rejected by both stages; None if any number may.

    Raises:
        SourceError: More rows are no valid requests than the job allows; then they are in
            `rejected`, and no other table was changed.
        UnfitError: A request of the evaluation set cannot run.
        ModelError: The tokenizer or the chat template cannot be used.
        SpaceError: There is no room for temporary files.
        IncompleteError: The tables of stage 1 are of different runs.
        TableError: The storage refused, or another run took in the partition meanwhile; run the
            partition again.
    """
    taken_in = taken_in_by(tables, partition)
    tokenizer = ModelTokenizer(model.path, tell)
    sorter, mapped, evaluated = tokenised(
        tokenizer,
        model,
        partition,
        lambda: tables.batches("raw_requests", partition, READ),
        memory,
        on_progress,
        apart,
        evaluation,
    )
    # All temporary files are written to their ends before the first table is replaced.
    frames, map_frames, image_frames = sorter.sorted(), mapped.frames(), sorter.images.frames()
    if taken_in_by(tables, partition) != taken_in:
        raise another_run(tables, partition)
    refused = rejected_rows(sorter.refused)
    fault = None if job is None else too_many_for_both_stages(job, tables, partition, refused)
    if fault is None:
        tables.replace("request_map", partition, map_frames)
        tables.replace("evaluation", partition, evaluated)
    tables.replace("rejected", partition, refused, stage="sorted_requests")
    if fault is not None:
        raise fault
    if len(sorter.images) or tables.count("images", partition):
        # A worker reads some images at a time: row groups of an eighth of the usual size.
        row_bytes = 8 * sorter.images.bytes / max(len(sorter.images), 1)
        tables.replace("images", partition, image_frames, row_bytes=row_bytes)
    order = _Order(sorter.images, on_progress)
    row_bytes = narrowest(tokenizer.ids)().itemsize * sorter.tokens / max(sorter.requests, 1)
    tables.replace("sorted_requests", partition, order.rows(frames), row_bytes=row_bytes)
    lcp, lengths = order.lcp.values, order.lengths.values
    return SortedStats(
        requests=sorter.requests,
        distinct=sorter.distinct - evaluated["request_hash"].n_unique(),
        rejected=sum(rejection.input_rows for rejection in sorter.refused),
        prompt_tokens=int(lengths.sum()),
        sharing=sharing(lcp, lengths),
        hit_rate_bound=hit_rate(lcp, lengths, block_size),
        spilled_bytes=sorter.spilled_bytes,
        limited=sorter.limited,
        images=order.shown(),
    )


class UnfitError(AcdcError):
    """A request of an evaluation set that cannot run."""

    def __init__(self, item: str, reason: str) -> None:
        super().__init__(
            f"Item {item!r} of the evaluation set cannot run: {reason}",
            "Correct the item, or take it out.",
        )


class Tokenised(NamedTuple):
    """All requests of a partition, ready to be sorted; rows of `request_map` and `evaluation`."""

    sorter: Sorter
    mapped: Spool
    evaluated: pl.DataFrame


def tokenised(
    tokenizer: ModelTokenizer,
    model: Model,
    partition: str,
    batches: Callable[[], Iterable[pl.DataFrame]],
    memory: int | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
    apart: str = "",
    evaluation: pl.DataFrame | None = None,
) -> Tokenised:
    """All requests of a partition, tokenised and ready to be sorted.

    Args:
        tokenizer: The model's.
        model: The model that answers.
        partition: The partition key.
        batches: Gives rows of `raw_requests` from the first on; asked a second time if the fast
            tokenizer turns out to differ from the reference.
        memory: See `sort_requests`.
        on_progress: Gets a line on how many requests are read, very often.
        apart: See `reuse.apart`.
        evaluation: See `sort_requests`.
    """
    while True:
        mapped = Spool()
        sorter = Sorter(
            tokenizer,
            ChatTemplate(model.path),
            model,
            sampling_defaults(model),
            salt=partition,
            memory=memory or sorting_memory(),
        )
        try:
            for raw in batches():
                mapped.add(sorter.add(raw, apart).with_columns(_prompt_version(raw)))
                on_progress(f"{sorter.requests:,} requests tokenised")
            evaluated = _evaluated(sorter, evaluation, f"evaluation/{apart or partition}")
        except DisagreementError:
            continue
        return Tokenised(sorter, mapped, evaluated)


def _evaluated(sorter: Sorter, requests: pl.DataFrame | None, apart: str) -> pl.DataFrame:
    """The evaluation set's rows of `evaluation`, once they are in the sorter."""
    if requests is None or requests.is_empty():
        return pl.DataFrame(schema=row_schema("evaluation"))
    refused = len(sorter.refused)
    mapped = sorter.add(requests, apart)
    sorter.requests -= mapped.height
    for rejection in sorter.refused[refused:]:
        raise UnfitError(rejection.custom_id or "", rejection.message)
    return mapped.select(
        item="custom_id",
        request_hash="request_hash",
        text=pl.lit(None, pl.String),
        score=pl.lit(None, pl.Float64),
    )


def _prompt_version(raw: pl.DataFrame) -> pl.Expr:
    """That of all rows of a partition; null if stage 1 of an earlier version wrote them."""
    version = raw["prompt_version"].first() if "prompt_version" in raw.columns else None
    return pl.lit(version, pl.String).alias("prompt_version")


class _Order:
    """Numbers the sorted requests and remembers what sharing is told from."""

    def __init__(self, images: ImageStore, on_progress: Callable[[str], None]) -> None:
        self.lcp, self.lengths = Growing(np.int64), Growing(np.int64)
        self._images = images
        self._shown = self._unknown = 0
        self._on_progress = on_progress

    def shown(self) -> ImageStats:
        """What the requests show, once all rows are taken."""
        return ImageStats(self._shown, len(self._images), self._images.bytes, self._unknown)

    def rows(self, frames: Iterator[Sorted]) -> Iterator[pl.DataFrame]:
        """Rows of `sorted_requests`."""
        for frame in frames:
            first = len(self.lcp)
            self.lcp.extend(frame.lcp)
            self.lengths.extend(frame.tokens.lengths)
            self._on_progress(f"{len(self.lcp):,} distinct requests sorted")
            rows = sorted_rows(frame, first, self._images)
            self._shown += int(rows["images"].list.len().sum())
            self._unknown += rows["image_tokens"].null_count()
            yield rows


def sampling_defaults(model: Model) -> dict[str, Any]:
    """The model's own defaults, which `vllm serve` also falls back to."""
    path = model.path / "generation_config.json"
    if not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: config[name] for name in _DEFAULTS if config.get(name) is not None}


def sorting_memory() -> int:
    """Bytes to sort in: `ACDC_SORT_MEMORY_GIB`, else a quarter of what this machine has.

    In a container that is the container's limit.

    Raises:
        DeclarationError: The variable is no number above 0.
    """
    given = os.environ.get("ACDC_SORT_MEMORY_GIB")
    if given:
        try:
            gib = float(given)
        except ValueError:
            gib = math.nan
        if not 0 < gib < math.inf:
            raise DeclarationError(
                f"ACDC_SORT_MEMORY_GIB is {given!r}, which is no number of GiB above 0.",
                "Give one, like 4 or 0.5, or unset it for a quarter of the memory.",
            )
        return int(gib * 2**30)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    return memory // 4
