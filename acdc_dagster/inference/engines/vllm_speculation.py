"""From a plan's speculation to vLLM's own `speculative_config`."""

from typing import Any

from acdc_dagster.planning.plan import EngineSettings

# Tokens that a look-up compares with what came before. A single one is found too often to be worth
# verifying; vLLM's own default looks for five only.
_NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}


def speculative_arguments(settings: EngineSettings) -> dict[str, Any]:
    """The engine arguments; none if the plan does not speculate.

    Two things that vLLM 0.32 does with a schedule are forestalled. Under its own data parallelism
    it drops the schedule and drafts the most tokens at every batch size, so there the length for
    full batches is given alone. Suffix look-up fails with one, so it gets none.
    """
    wanted = settings.speculation
    if wanted is None:
        return {}
    tokens = wanted.tokens
    schedule = [(first, last, drafts) for first, last, drafts in wanted.schedule]
    ranks = int(settings.extra.get("data_parallel_size", 1))
    if schedule and (ranks > 1 or wanted.method == "suffix"):
        tokens, schedule = schedule[-1][2], []
    if not tokens:
        return {}
    config: dict[str, Any] = {"method": wanted.method, "num_speculative_tokens": tokens}
    if wanted.method == "ngram":
        config |= _NGRAM
    if wanted.model_path is not None:
        config["model"] = wanted.model_path
    if schedule:
        config["num_speculative_tokens_per_batch_size"] = schedule
    return {"speculative_config": config}
