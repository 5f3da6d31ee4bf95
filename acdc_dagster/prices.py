"""What a device costs an hour and what providers ask for tokens, as a deployment declares it."""

from datetime import date
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from acdc_dagster.declared import Declared, declaration

_MILLION = 1e6


class TokenPrice(Declared):
    """What a provider asks for 10^6 tokens of a model."""

    input: float = Field(ge=0, description="Prompt tokens.")
    cached_input: float | None = Field(
        default=None, ge=0, description="Prompt tokens from its cache; as others if not given."
    )
    output: float = Field(ge=0, description="Tokens of the answer, its reasoning included.")
    batch_discount: float = Field(default=0.5, ge=0, le=1, description="0.5: half the price.")
    date: date
    source: str

    def online(self, prompt: int, cached: int, completion: int) -> float:
        """The price of so many tokens; `cached` are those of the prompt from a cache."""
        of_cached = self.input if self.cached_input is None else self.cached_input
        in_all = (prompt - cached) * self.input + cached * of_cached + completion * self.output
        return in_all / _MILLION

    def batch(self, prompt: int, cached: int, completion: int) -> float:
        """The same in the provider's batch API."""
        return self.online(prompt, cached, completion) * (1 - self.batch_discount)


class _PriceFile(Declared):
    models: dict[str, TokenPrice]


class Prices(Declared):
    """Prices of a deployment; without `device_hour` the cost of answers is not known."""

    currency: str = "USD"
    device_hour: float | None = Field(
        default=None, ge=0, description="One GPU, or one machine without, for an hour."
    )
    compare: str | None = Field(
        default="gpt-4.1-mini", description="The provider's model to compare with."
    )
    models: dict[str, TokenPrice] = Field(
        default_factory=dict, description="Beside those of the package, or in their place."
    )

    @model_validator(mode="after")
    def _compare_is_known(self) -> Self:
        if self.compare is not None and self.compare not in {**_known(), **self.models}:
            known = ", ".join(sorted({**_known(), **self.models}))
            raise ValueError(f"compare: {self.compare!r} has no price; choose one of: {known}")
        return self

    @property
    def compared(self) -> TokenPrice | None:
        """The price to compare with."""
        return None if self.compare is None else {**_known(), **self.models}[self.compare]


@cache
def _known() -> dict[str, TokenPrice]:
    """The package's own table."""
    return declaration(_PriceFile, Path(__file__).with_suffix(".yaml")).models
