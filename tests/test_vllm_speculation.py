"""A plan's speculation as vLLM's settings, and a real engine that runs with them."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from support_history import settings
from vllm_client import Client, started

from acdc_dagster.inference.engines.vllm_speculation import speculative_arguments
from acdc_dagster.planning.plan import EngineSettings
from acdc_dagster.speculation import Speculation

SCHEDULE = [(1, 4, 5), (5, 64, 2)]
PROMPT = [
    {"role": "user", "content": "Repeat: red fox, blue fox, red fox, blue fox, red fox, blue fox."}
]


def arguments(speculation: Speculation | None, **extra: object) -> dict[str, object]:
    """Those of an engine with nothing else of interest."""
    made = settings(extra=extra, speculation=speculation)
    return speculative_arguments(made).get("speculative_config", {})


def test_vllms_own_words() -> None:
    """Nothing without speculation; a head with its folder; a look-up with its window."""
    assert arguments(None) == {}
    assert arguments(Speculation(method="eagle3", tokens=3, model_path="/head")) == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": "/head",
    }
    ngram = arguments(
        Speculation(method="ngram", tokens=5, schedule=[list(each) for each in SCHEDULE])
    )
    assert ngram["num_speculative_tokens"] == 5
    assert ngram["num_speculative_tokens_per_batch_size"] == SCHEDULE
    assert ngram["prompt_lookup_min"] == 2


def test_a_schedule_that_would_be_dropped() -> None:
    """Under data parallelism and for suffix look-up the length for full batches stands alone."""
    spoken = Speculation(method="ngram", tokens=5, schedule=[list(each) for each in SCHEDULE])
    locked = arguments(spoken, data_parallel_size=2)
    assert locked["num_speculative_tokens"] == 2
    assert "num_speculative_tokens_per_batch_size" not in locked
    suffix = arguments(spoken.model_copy(update={"method": "suffix"}))
    assert suffix == {"method": "suffix", "num_speculative_tokens": 2}
    ends = spoken.model_copy(update={"schedule": [(1, 4, 5), (5, 64, 0)]})
    assert arguments(ends, data_parallel_size=2) == {}


def test_settings_of_an_earlier_version_are_read() -> None:
    """Rows of `history` that know no speculation but the count of tokens, which was 0."""
    made = settings()
    earlier = json.loads(made.model_dump_json()) | {"speculative_tokens": 0}
    del earlier["speculation"]
    assert EngineSettings.model_validate_json(json.dumps(earlier)) == made
    with pytest.raises(ValidationError):
        EngineSettings.model_validate_json(json.dumps({**earlier, "unheard_of": 1}))


@pytest.mark.engine
def test_an_engine_drafts_and_answers_as_without(model_path: Path) -> None:
    """N-gram look-up with a schedule: drafts are made and accepted, and the answer is the same."""
    spoken = Speculation(method="ngram", tokens=4, schedule=[[1, 2, 4], [3, 8, 1]])
    texts: list[str | None] = []
    for speculation in (None, spoken):
        engine = started(model_path, speculation=speculation)
        try:
            answer = Client(engine, model_path).ask(messages=PROMPT, max_tokens=48)
            texts.append(answer.text)
            drafts, accepted = engine.state.drafts, engine.state.accepted
        finally:
            engine.close()
        assert (drafts > 0) == (speculation is not None)
    assert texts[0] == texts[1]
    assert sum(accepted) > 0
    assert len(accepted) == spoken.tokens
