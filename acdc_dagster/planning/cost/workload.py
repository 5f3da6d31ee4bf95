"""What of a job the cost model needs: sums and spreads, made once for all layouts."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ALIKE = 64  # requests of one size that stand for any number of them
_CHUNKS = 4096  # looked at, of the chunks that the prompts are computed in


@dataclass(frozen=True)
class Workload:
    """A job in numbers. Tokens are sums over requests unless said otherwise.

    Attributes:
        prompt_tokens: All.
        uncached_tokens: Those computed, if each request follows its predecessor in prefix order.
        decode_steps: Tokens of the answers but the first of each, which the prompt's step gives.
        prefill_pairs: Pairs of tokens that attend to one another while prompts are computed.
        prompt_pairs: The same if nothing were found in the cache.
        context: Mean tokens of context of a running request, over time.
        context_spread: Its standard deviation.
        own: Of that context, the mean tokens that the requests before it do not have.
        longest: Most tokens of prompt and answer of a request.
        longest_answer: Most tokens of an answer.
        mean_lcp: Mean tokens shared with the request before; what a cut costs.
        chunk_contexts: Sorted mean contexts, one for each of many chunks of prompt tokens.
    """

    requests: int
    prompt_tokens: float
    uncached_tokens: float
    decode_steps: float
    prefill_pairs: float
    prompt_pairs: float
    context: float
    context_spread: float
    own: float
    longest: int
    longest_answer: int
    mean_lcp: float
    chunk_contexts: Floats

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens found in the cache, 0 to 1."""
        return 1 - self.uncached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def chunk_imbalance(self, ranks: int) -> float:
        """Context of the worst of `ranks` chunks computed side by side, over the mean; at least 1.

        The expected largest of `ranks` draws is the sum of x_i ((i / n)^ranks - ((i-1) / n)^ranks)
        over the n sorted values x_i.
        """
        contexts = self.chunk_contexts
        mean = float(contexts.mean()) if len(contexts) else 0.0
        if mean == 0 or ranks == 1:
            return 1.0
        powers = (np.arange(len(contexts) + 1) / len(contexts)) ** ranks
        return float(contexts @ np.diff(powers)) / mean

    def context_imbalance(self, ranks: int, sequences: float) -> float:
        """Summed context of the worst of `ranks` batches of `sequences`, over the mean; from 1.

        Sums of many are about normal; the largest of n normal values is expected about
        quantile (n - 0.375) / (n + 0.25) above the mean (Blom 1958).
        """
        if ranks == 1 or self.context == 0:
            return 1.0
        above = normal_maximum(ranks)
        return 1 + above * self.context_spread / self.context / math.sqrt(max(sequences, 1.0))


def normal_maximum(count: int) -> float:
    """Expected largest of `count` standard normal values, by Blom's approximation."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def workload(
    lengths: Ints, lcp: Ints, answers: Ints, block_size: int = 16, chunk: int = 8192
) -> Workload:
    """The numbers of a job in prefix order.

    A running request stays for as many steps as its answer has tokens, d, and holds its prompt and
    half its answer on average. So a mean over time weighs requests by d: the context is
    sum d (length + d / 2) / sum d, which is E[in] + E[out^2] / (2 E[out]) if both are independent.

    Args:
        lengths: int64[N], prompt tokens.
        lcp: int64[N], prompt tokens shared with the request before; 0 first.
        answers: int64[N], expected tokens of the answers.
        block_size: Tokens of a KV block; only full blocks are shared, and the last token of a
            prompt is always computed.
        chunk: Prompt tokens that a step computes at most.
    """
    if len(lengths) == 0:
        return Workload(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, np.zeros(0))
    shared = np.minimum(lcp, lengths - 1) // block_size * block_size
    uncached = (lengths - shared).astype(np.float64)
    weight = answers / max(float(answers.sum()), 1.0)
    middle = lengths + answers / 2
    context = float(weight @ middle)
    # Over time a request's context runs evenly from its length to length + answer.
    spread = float(weight @ (middle**2 + answers.astype(np.float64) ** 2 / 12)) - context**2
    return Workload(
        requests=len(lengths),
        prompt_tokens=float(lengths.sum()),
        uncached_tokens=float(uncached.sum()),
        decode_steps=float(np.maximum(answers - 1, 0).sum()),
        prefill_pairs=float((uncached * (shared + uncached / 2)).sum()),
        prompt_pairs=float((lengths.astype(np.float64) ** 2).sum() / 2),
        context=context,
        context_spread=math.sqrt(max(spread, 0.0)),
        own=context - float(weight @ shared) + block_size / 2,  # its last block is half full
        longest=int((lengths + answers).max()),
        longest_answer=int(answers.max()),
        mean_lcp=float(shared.mean()),
        chunk_contexts=_chunk_contexts(shared.astype(np.float64), uncached, chunk),
    )


def uniform(requests: int, prompt: float, cached: float, answers: float) -> Workload:
    """Requests of one size, of which only the sums are known.

    Args:
        requests: How many.
        prompt: Prompt tokens of all.
        cached: Those found in the cache.
        answers: Tokens of all answers.
    """
    some = min(requests, _ALIKE)
    sizes = (np.full(some, round(total / max(requests, 1))) for total in (prompt, cached, answers))
    found = workload(*sizes, block_size=1)
    scale = requests / max(some, 1)
    return replace(
        found,
        requests=requests,
        prompt_tokens=float(prompt),
        uncached_tokens=float(prompt - cached),
        decode_steps=float(max(answers - requests, 0)),
        prefill_pairs=found.prefill_pairs * scale,
        prompt_pairs=found.prompt_pairs * scale,
    )


def _chunk_contexts(shared: Floats, uncached: Floats, chunk: int) -> Floats:
    """Mean context of the tokens of chunks spread evenly over the uncached tokens, sorted."""
    ends = np.cumsum(uncached)
    size = min(float(chunk), float(ends[-1]))
    chunks = min(_CHUNKS, max(math.ceil(ends[-1] / size), 64))
    starts: Floats = np.linspace(0.0, float(ends[-1]) - size, chunks, dtype=np.float64)
    pairs_before = np.append(0.0, np.cumsum(uncached * (shared + uncached / 2)))
    begins = np.append(0.0, ends)

    def pairs(until: Floats) -> Floats:
        row = np.minimum(np.searchsorted(begins, until, side="right") - 1, len(shared) - 1)
        inside = until - begins[row]
        return pairs_before[row] + inside * (shared[row] + inside / 2)

    return np.sort((pairs(starts + size) - pairs(starts)) / size)
