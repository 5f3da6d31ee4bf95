"""How often a job asks again, as a user declares it."""

from pydantic import Field

from acdc_dagster.declared import Declared


class LargerCap(Declared):
    """Truncated answers are asked for once more with room for more tokens."""

    max_tokens: int = Field(ge=1, description="Most tokens of the second answer.")


class Retries(Declared):
    """How often a request is asked again after a failure, by class of failure.

    A finished request is never repeated, and a `permanent` failure is never asked again: nothing
    would be different. Nor is `capacity`: it needs another plan.
    """

    transient: int = Field(default=2, ge=0, le=10, description="As it was.")
    parse: int = Field(
        default=1, ge=0, le=3, description="With the schema and an instruction to keep to it."
    )
    truncated: LargerCap | None = Field(
        default=None, description="Once, with max_tokens; not at all if not given."
    )

    def allowed(self, failure: str) -> int:
        """How many failures of this class are followed by another attempt."""
        if failure == "truncated":
            return 0 if self.truncated is None else 1
        return {"transient": self.transient, "parse": self.parse}.get(failure, 0)
