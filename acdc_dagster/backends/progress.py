"""The progress of a partition's run, over all its workers."""

from dataclasses import dataclass

from acdc_dagster.inference.events import Event


@dataclass(frozen=True)
class Progress:
    """How far a run is; sums over its workers, of this run where nothing else is said.

    Attributes:
        state: loading, running or finished.
        done: Requests answered, in this or an earlier run.
        total: Requests of the plan.
        computed: Requests answered.
        failed: Of those, without an answer.
        seconds: Since the first engine was up.
        seconds_left: At the rate of the last half minute; 0 if unknown.
        running: Requests in the engines' batches.
        batch_fill: Mean share of the batches' places in use, 0 to 1.
        restarts: Engines that died or hung.
        trouble: What goes wrong while it is tried again; empty if nothing does.
    """

    state: str
    done: int
    total: int
    computed: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float
    seconds_left: float
    running: int
    batch_fill: float
    restarts: int
    trouble: str

    @staticmethod
    def over(events: list[Event]) -> "Progress":
        """The workers' latest events as one."""
        states = {event.kind for event in events}
        state = "loading" if states <= {"loading", "finished"} else "running"
        working = sum(event.seconds for event in events)
        return Progress(
            state="finished" if states <= {"finished"} else state,
            done=sum(event.done for event in events),
            total=sum(event.total for event in events),
            computed=sum(event.computed for event in events),
            failed=sum(event.failed for event in events),
            prompt_tokens=sum(event.prompt_tokens for event in events),
            cached_tokens=sum(event.cached_tokens for event in events),
            completion_tokens=sum(event.completion_tokens for event in events),
            seconds=max((event.seconds for event in events), default=0.0),
            seconds_left=max((event.seconds_left for event in events), default=0.0),
            running=sum(event.running for event in events),
            batch_fill=sum(event.batch_fill * event.seconds for event in events) / (working or 1.0),
            restarts=sum(event.restarts for event in events),
            trouble="; ".join(
                f"worker {event.shard}: {event.trouble}" for event in events if event.trouble
            ),
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
        if self.state == "running" and self.seconds_left >= 1:
            text += f", {_duration(self.seconds_left)} left"
        if self.failed:
            text += f", {self.failed} without an answer"
        if self.trouble:
            text += f" ({self.trouble})"
        return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
