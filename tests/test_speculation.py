"""Speculation: what drafts give, when they pay, and what is said of it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from model_configs import CONFIGS

from acdc_dagster.errors import ModelError
from acdc_dagster.gpus import Pool, known_gpus
from acdc_dagster.planning.cost.layout import Layout
from acdc_dagster.planning.cost.makespan import EngineLimits, Prediction, predict
from acdc_dagster.planning.cost.step import Batch
from acdc_dagster.planning.cost.workload import workload
from acdc_dagster.planning.shapes.config import Config
from acdc_dagster.planning.shapes.model import model_shape
from acdc_dagster.planning.speculation.acceptance import Acceptance, assumed, counted
from acdc_dagster.planning.speculation.choice import decide, refused
from acdc_dagster.planning.speculation.drafter import Costs, Drafter, drafter_of, roofline
from acdc_dagster.planning.speculation.goodput import Running, gains

H20 = known_gpus({})["H20"]
QWEN = CONFIGS["Qwen3-32B"]
SHAPE = model_shape(Config.of(QWEN, "Qwen3-32B"))
HEAD = Drafter(
    "eagle3",
    "/models/head",
    model_shape(Config.of({**QWEN, "num_hidden_layers": 1, "vocab_size": 32_000}, "head")),
)
LOOKUP = Drafter("ngram")
LIMITS = EngineLimits(256, 8192)
TP4 = Layout(4)
H20_TP4 = roofline(SHAPE, H20, TP4, HEAD)
# Steps of the sample model on two CPU cores, measured: 25.6 ms and 1.97 ms a token.
CPU = Costs(
    step=lambda batch: 0.0256 + 0.00197 * batch.tokens,
    drafting=lambda batch, _: 1e-5 * batch.sequences,
)


def running(prompt: int, answer: int = 500) -> Running:
    """As many requests of one size as four H20 keep, while no prompts are computed."""
    job = workload(np.full(2000, prompt), np.zeros(2000, np.int64), np.full(2000, answer))
    found = predict(SHAPE, Pool("H20", H20, 4), TP4, job, LIMITS)
    assert isinstance(found, Prediction)
    return Running(found.sequences, job.context)


def test_tokens_of_a_step() -> None:
    """Leviathan's sum for one chance; positions of their own; none beyond what is known at 0."""
    even = assumed(0.7, 3)
    for drafts in (1, 3, 6):
        assert even.tokens(drafts) == pytest.approx((1 - 0.7 ** (drafts + 1)) / (1 - 0.7))
    assert Acceptance(0.5, (0.8, 0.4)).tokens(2) == pytest.approx(1.6)
    assert Acceptance(0.5, (0.8, 0.4)).tokens(3) == pytest.approx(1.7)
    assert Acceptance(1.0, (0.5, 0.0)).tokens(4) == 1.5
    assert Acceptance(1.0, ()).tokens(4) == 1.0


def test_acceptance_is_counted() -> None:
    """Of 100 tokens 40 were drafted ones, so there were 60 steps, 30 of them with a draft."""
    found = counted(100, 30, [24, 12, 4])
    assert found == Acceptance(0.5, (0.8, 0.4, pytest.approx(4 / 30)))
    assert found.tokens(3) == pytest.approx(100 / 60)
    assert counted(100, 0, []) is None


def test_the_papers_shape() -> None:
    """Qwen3-32B with EAGLE-3 on H20: every draft slows short prompts, a few tokens help long ones.

    And the longer the context, the more they help and the longer they may be.
    """
    by_length = {
        length: gains(H20_TP4, running(length), assumed(0.7))
        for length in (100, 1000, 4000, 16_000, 32_000)
    }
    assert max(by_length[100][1:]) < 1
    assert by_length[1000][6] < 1
    best = [max(found) for found in by_length.values()]
    assert best == sorted(best)
    lengths = [int(np.argmax(found)) for found in by_length.values()]
    assert lengths == sorted(lengths)
    assert 2 <= lengths[-2] <= 4
    assert best[-1] > 1.18


def test_drafts_are_chosen_by_goodput() -> None:
    """With the same acceptance on for one request and off for a batch, as was measured on a CPU."""
    found = Acceptance(0.6, (0.5, 0.3, 0.12, 0.05))
    alone = decide(LOOKUP, CPU, Running(1, 200), found, LIMITS)
    assert alone.speculation is not None
    assert 2 <= alone.speculation.tokens <= 4
    assert alone.gain > 0.15
    full = decide(LOOKUP, CPU, Running(64, 200), found, LIMITS)
    assert full.speculation is None
    assert full.gain < 0.05


def test_prompts_in_the_batch_take_the_gain() -> None:
    """Where most of a step computes prompts, drafts have little to speed up."""
    answering = running(16_000)
    job = workload(np.full(2000, 16_000), np.zeros(2000, np.int64), np.full(2000, 100))
    mixed = Running.of(job, answering.sequences)
    assert decide(HEAD, H20_TP4, answering, assumed(0.7), LIMITS).speculation is not None
    assert decide(HEAD, H20_TP4, mixed, assumed(0.7), LIMITS).speculation is None


def test_a_small_gain_is_no_reason() -> None:
    """The margin is what a prediction is not sure of."""
    chosen = decide(HEAD, H20_TP4, running(16_000), assumed(0.7), LIMITS)
    assert 0.1 < chosen.gain < 0.9
    assert (
        decide(
            HEAD, H20_TP4, running(16_000), assumed(0.7), LIMITS, margin=chosen.gain + 0.01
        ).speculation
        is None
    )


def test_what_is_not_known_stays_off() -> None:
    """A look-up without a measurement is off; a declared head is tried with a usual acceptance."""
    assert decide(LOOKUP, CPU, Running(1, 200), None, LIMITS).speculation is None
    head = decide(HEAD, H20_TP4, running(32_000), None, LIMITS)
    assert head.speculation is not None
    assert (head.speculation.method, head.speculation.model_path) == ("eagle3", "/models/head")
    assert "assumed" in head.why


def test_a_schedule_drafts_longer_for_smaller_batches() -> None:
    """From one request to as many as the engine takes, without gaps, never longer than `tokens`."""
    chosen = decide(HEAD, H20_TP4, running(16_000), assumed(0.8), LIMITS).speculation
    assert chosen is not None
    firsts, lasts, tokens = zip(*chosen.schedule, strict=True)
    assert firsts[0] == 1
    assert list(firsts[1:]) == [last + 1 for last in lasts[:-1]]
    assert lasts[-1] == 256
    assert list(tokens) == sorted(tokens, reverse=True)
    assert max(tokens) == chosen.tokens


def test_where_no_schedule_may_be() -> None:
    """Replicas in lock-step and suffix look-up draft the full batch's length at every size."""
    batch, found = running(16_000), assumed(0.8)
    suffix = Drafter("suffix")
    free = roofline(SHAPE, H20, TP4, suffix)
    full = decide(HEAD, H20_TP4, batch, found, LIMITS).speculation
    assert full is not None
    for decision in (
        decide(HEAD, H20_TP4, batch, found, LIMITS, lockstep=True),
        decide(suffix, free, batch, found, LIMITS),
    ):
        assert decision.speculation is not None
        assert decision.speculation.schedule == []
    locked = decide(HEAD, H20_TP4, batch, found, LIMITS, lockstep=True).speculation
    assert locked is not None
    assert locked.tokens == full.schedule[-1][2]


def test_drafts_fit_a_step() -> None:
    """A batch's drafts are verified within max_num_batched_tokens."""
    chosen = decide(HEAD, H20_TP4, running(32_000), assumed(0.9), EngineLimits(256, 64))
    assert chosen.speculation is not None
    assert chosen.speculation.schedule[-1][2] == 1


def test_requests_that_cannot_be_speculated() -> None:
    """min_p and logit_bias, in whatever form the sampling says them; values of no effect do not."""
    sampling = pl.Series(
        "sampling",
        ['{"temperature":0}', '{"min_p":0.1}', '{"min_p":0}', '{"logit_bias":{}}']
        + ['{"logit_bias":{"3":-100},"temperature":1}'] * 2,
    )
    assert refused(sampling) == 3
    assert refused(sampling[[0, 2, 3]]) == 0
    off = decide(HEAD, H20_TP4, running(32_000), assumed(0.9), LIMITS, refusing=3)
    assert off.speculation is None
    assert "3 request(s)" in off.why


def test_a_declared_drafter_is_read(tmp_path: Path) -> None:
    """A head by its own config.json; a look-up has none; a folder without one says so."""
    config = {**QWEN, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = drafter_of("eagle3", tmp_path)
    assert head.path == str(tmp_path)
    assert head.shape == model_shape(Config.of(config, "head"))
    assert drafter_of("ngram", None) == LOOKUP
    with pytest.raises(ModelError, match=r"config\.json"):
        drafter_of("draft_model", tmp_path / "none")


def test_verified_tokens_are_computed_and_their_context_read_once() -> None:
    """A draft of one token doubles the work of decoding, and not what is read of the KV."""
    plain, drafted = Batch(16, 16, 30_000), Batch(32, 16, 30_000, drafted=1.0)
    short = (Batch(4096, 4096, 100), Batch(8192, 4096, 100, drafted=1.0))
    assert H20_TP4.step(drafted) < 1.05 * H20_TP4.step(plain)
    assert H20_TP4.step(short[1]) > 1.6 * H20_TP4.step(short[0])
