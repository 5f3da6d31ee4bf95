"""The progress of a partition's run, over all its workers."""

from dataclasses import dataclass

from acdc_dagster.inference.events import Event


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        state: loading, running or finished.
        done: Requests answered, in this or an earlier run.
        total: Requests of the plan.
        computed: Requests answered in this run.
        seconds: Since the first engine was up.
    """

    state: str
    done: int
    total: int
    computed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float

    @staticmethod
    def over(events: list[Event]) -> "Progress":
        """The sum of the workers' latest events."""
        states = {event.kind for event in events}
        state = "loading" if states <= {"loading", "finished"} else "running"
        return Progress(
            state="finished" if states <= {"finished"} else state,
            done=sum(event.done for event in events),
            total=sum(event.total for event in events),
            computed=sum(event.computed for event in events),
            prompt_tokens=sum(event.prompt_tokens for event in events),
            cached_tokens=sum(event.cached_tokens for event in events),
            completion_tokens=sum(event.completion_tokens for event in events),
            seconds=max((event.seconds for event in events), default=0.0),
        )

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that the prefix cache held; None before the first answer."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def tokens_per_second(self) -> float | None:
        """Prompt and answer tokens a second, counted when a request is done."""
        tokens = self.prompt_tokens + self.completion_tokens
        return tokens / self.seconds if self.seconds and tokens else None

    def __str__(self) -> str:
        share = 100 * self.done // self.total if self.total else 100
        text = f"{self.done}/{self.total} requests ({share} %)"
        if self.state == "loading":
            text += ", starting the engine"
        if self.tokens_per_second is not None and self.hit_rate is not None:
            text += (
                f", {self.tokens_per_second:,.0f} tokens/s, "
                f"{100 * self.hit_rate:.1f} % of prompt tokens from the prefix cache"
            )
        return text
