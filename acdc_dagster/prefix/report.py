"""What an OpenAI-batch file holds, and what its order is worth, before anything runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acdc_dagster.deployment import Deployment, Model, found_model
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.prefix.cache import simulated_hit_rate
from acdc_dagster.prefix.order import hit_rate, prefix_order, shared_with_previous, sharing
from acdc_dagster.prefix.stage import sampling_defaults, tokenise
from acdc_dagster.prefix.tokenizer import ByteEstimate, ModelTokenizer, PromptTokenizer
from acdc_dagster.requests.jsonl import take_files
from acdc_dagster.requests.rejected import rejected_rows

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class FileReport:
    """The findings; all figures are over the valid rows, repeated requests included.

    Attributes:
        rows: Lines that are not blank.
        duplicates: Valid rows whose request is that of an earlier row.
        sharing: Share of prompt tokens that repeat a prefix (0 to 1).
        file_order: Expected prefix-cache hit rate when run in file order,
        prefix_order: and in prefix order, with the same cache.
        bound: Highest possible hit rate, with a cache that never forgets.
    """

    file: str
    rows: int
    valid: int
    rejected: list[dict[str, Any]]
    duplicates: int
    prompt_tokens: int
    sharing: float
    file_order: float
    prefix_order: float
    bound: float
    warnings: list[str]

    @property
    def can_run(self) -> bool:
        """Whether a job could run the file: it has valid rows, or no rows at all."""
        return self.valid > 0 or self.rows == 0

    def as_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(
            {
                "rows": self.rows,
                "valid": self.valid,
                "rejected": self.rejected,
                "duplicates": self.duplicates,
                "prompt_tokens": self.prompt_tokens,
                "sharing": self.sharing,
                "hit_rate": {
                    "file_order": self.file_order,
                    "prefix_order": self.prefix_order,
                    "bound": self.bound,
                },
                "warnings": self.warnings,
            },
            ensure_ascii=False,
        )

    def as_text(self) -> str:
        """The report for a person."""
        lines = [
            f"{self.file}: {self.rows} rows, {self.valid} valid, {len(self.rejected)} rejected",
            *(f"  line {r['line']}: {r['code']}: {r['message']}" for r in self.rejected[:20]),
        ]
        if len(self.rejected) > 20:
            lines.append(f"  … and {len(self.rejected) - 20} more; --json lists all")
        lines += [
            f"duplicates        {self.duplicates} (a repeated request is computed once)",
            f"prompt tokens     {self.prompt_tokens}",
            f"prefix sharing    {100 * self.sharing:.1f} % of prompt tokens repeat a prefix",
            f"cache hit rate    {100 * self.file_order:.1f} % in file order, "
            f"{100 * self.prefix_order:.1f} % in prefix order, "
            f"{100 * self.bound:.1f} % at best",
            *(f"warning: {warning}" for warning in self.warnings),
            "A job can run this file." if self.can_run else "No job can run this file.",
        ]
        return "\n".join(lines)


def report_file(
    file: Path, tokenizer: Path | None, block_size: int = 16, kv_tokens: int = 65_536
) -> FileReport:
    """Examine one OpenAI-batch file.

    Args:
        file: The file; `.gz` too.
        tokenizer: Model folder or tokenizer.json. If None, the deployment's model that the file
            names, else its only model, else an estimate of four bytes a token.
        block_size: Tokens in a KV block.
        kv_tokens: Tokens that the simulated prefix cache holds.

    Raises:
        SourceError: The file cannot be read.
        ModelError: The given tokenizer cannot be used.
    """
    taken = take_files([file], model=None)
    warnings = list(taken.warnings)
    named = str(taken.requests["model"][0]) if taken.requests.height else ""
    encoder, model = _tokenizer(tokenizer, named, warnings)
    defaults = {} if isinstance(encoder, ByteEstimate) else sampling_defaults(model)
    found = tokenise(taken.requests, encoder, model, defaults)
    if taken.input_rows == 0:
        warnings.append("The file has no rows; a job would succeed with empty tables.")
    # A repeated line counts as often as it stands in the file.
    times = found.rows["input_rows"].to_list()
    tokens = [r.tokens for r, n in zip(found.requests, times, strict=True) for _ in range(n)]
    distinct = {(request.sampling, request.tokens.tobytes()) for request in found.requests}
    duplicates = len(tokens) - len(distinct)
    sampled = [(r.sampling, r.tokens.tobytes()) for r in found.requests if not r.deterministic]
    if len(set(sampled)) < len(sampled):
        warnings.append(
            "Repeated requests that are sampled (temperature above 0, no seed) are meant to get "
            "answers of their own: each is computed, and only its prompt is shared."
        )
    order = prefix_order(tokens)
    ordered = [tokens[at] for at in order]
    lcp = shared_with_previous(ordered)
    lengths = np.array([len(ids) for ids in ordered], dtype=np.int64)
    in_file = np.argsort(order)  # where each row of the file stands in prefix order
    rejected = rejected_rows([*taken.rejections, *found.refused])
    return FileReport(
        file=str(file),
        rows=taken.input_rows,
        valid=len(tokens),
        rejected=rejected.select("line", "code", "message").to_dicts(),
        duplicates=duplicates,
        prompt_tokens=int(lengths.sum()),
        sharing=sharing(lcp, lengths),
        file_order=simulated_hit_rate(lcp, lengths, block_size, kv_tokens, in_file),
        prefix_order=simulated_hit_rate(lcp, lengths, block_size, kv_tokens),
        bound=hit_rate(lcp, lengths, block_size),
        warnings=warnings,
    )


def _tokenizer(
    given: Path | None, named: str, warnings: list[str]
) -> tuple[PromptTokenizer, Model]:
    """The tokenizer to count with, and the model whose limits hold."""
    if given is not None:
        if given.is_dir() and (given / "config.json").is_file():
            model = found_model(named, given, None, "--tokenizer")
        else:
            model = Model(named, given.parent, "", _NO_LIMIT)
        return ModelTokenizer(given), model
    try:
        deployment = Deployment.load()
        models = deployment.environment.models
        name = named if named in models or len(models) != 1 else next(iter(models))
        model = deployment.model(name)
    except (DeclarationError, ModelError):
        if named:
            warnings.append(
                f"No tokenizer for model {named!r} is at hand: tokens are estimated at four bytes "
                "each. Give --tokenizer for exact figures."
            )
        return ByteEstimate(), Model(named, Path(), "", _NO_LIMIT)
    if named and name != named:
        warnings.append(f"Model {named!r} is not declared here; counted with {name}'s tokenizer.")
    return ModelTokenizer(model.path), model
