"""The `acdc` command."""

import errno
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from acdc_dagster import __version__
from acdc_dagster.errors import AcdcError, DeclarationError
from acdc_dagster.failures import FAILURE_CLASSES


class _Group(click.Group):
    """A fault that its user can mend is printed, not thrown at them."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AcdcError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="acdc")
def main() -> None:
    """Offline LLM batch inference as Dagster assets."""


@contextmanager
def _progress_line() -> Generator[Callable[[str], None]]:
    """Shows the newest text on a line of a terminal's standard error, and wipes it in the end."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from acdc_dagster.inference.events import Throttle

    throttle = Throttle(0.5)
    wipe = "\r\x1b[2K"

    def tell(text: str) -> None:
        if throttle.ready():
            click.echo(wipe + text, err=True, nl=False)

    try:
        yield tell
    finally:
        click.echo(wipe, err=True, nl=False)


def _print(text: str) -> None:
    """Print a result.

    Raises:
        AcdcError: Standard output takes no more.
    """
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has enough; click ends quietly
            raise
        # Else Python would fail once more, when it ends and empties the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise AcdcError(
            f"Standard output cannot be written: {error.strerror}.",
            "Make room, or send it elsewhere.",
        ) from error


@main.command()
@click.argument("what", metavar="FILE|JOB")
@click.option("--partition", help="Of a JOB: the partition key; needed if the job has partitions.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Model folder or tokenizer.json; else the deployment's model of that name, else an "
    "estimate.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    help="Tokens in a KV block; else the environment's, else 16.",
)
@click.option(
    "--kv-tokens",
    default=65_536,
    type=click.IntRange(min=1),
    show_default=True,
    help="Tokens that the engine's prefix cache holds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    what: str,
    partition: str | None,
    tokenizer: Path | None,
    block_size: int | None,
    kv_tokens: int,
    *,
    as_json: bool,
) -> None:
    """Say what a batch FILE or a partition of a JOB holds, and what its order is worth.

    Nothing is written and no model is loaded. Exit code 0 if a job could run it, 1 if not.
    """
    from acdc_dagster.prefix.examine.check import check_source

    with _progress_line() as on_progress:
        report = check_source(what, partition, tokenizer, block_size, kv_tokens, on_progress)
    _print(report.as_json() if as_json else report.as_text())
    sys.exit(0 if report.can_run else 1)


@main.command()
@click.argument("job")
@click.option("--partition", help="Partition key; needed if the job has partitions.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME:COUNT",
    help="GPUs to plan for, like H100:16; may be given several times. Else this machine.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="The cheapest layout that is done by then, instead of the fastest.",
)
@click.option(
    "--done-by",
    metavar="MOMENT",
    help="The same with a time of day, like 06:00 in the job's time zone, or 2026-12-01T06:00.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    help="The most it may cost, in the currency of price_hour.",
)
@click.option(
    "--what-if",
    is_flag=True,
    help="Compare numbers of these GPUs; without --gpu, up to 16 of each kind that is known.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    job: str,
    partition: str | None,
    gpus: tuple[str, ...],
    within: float | None,
    done_by: str | None,
    budget: float | None,
    *,
    what_if: bool,
    as_json: bool,
) -> None:
    """Say how long a prepared partition of JOB would take on which layout of GPUs, and why.

    Needs no GPU, and starts and writes nothing. Exit code 0 if the limits are met, 1 if not.
    """
    from acdc_dagster.deployment import Deployment
    from acdc_dagster.job import WHOLE
    from acdc_dagster.planning.choice import Goal
    from acdc_dagster.planning.forecast import forecast
    from acdc_dagster.planning.moments import seconds_until

    deployment = Deployment.load()
    asked = deployment.job(job)
    seconds = None if within is None else within * 3600
    if done_by is not None:
        until = seconds_until(done_by, asked.declared.timezone, datetime.now(UTC))
        seconds = until if seconds is None else min(until, seconds)
    goal = Goal(seconds, budget)
    found = forecast(asked, deployment, partition or WHOLE, gpus, goal, what_if=what_if)
    _print(found.as_json() if as_json else found.as_text())
    sys.exit(0 if found.choice.met else 1)


@main.command()
@click.argument("model")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="For measuring; starting the engine comes on top.",
)
def calibrate(model: str, minutes: float) -> None:
    """Measure how fast MODEL runs on this machine, for plans to learn from.

    Runs small jobs of random tokens on the engine that the environment describes, each as a row of
    the table `history` of the deployment. What does not fit into the time is left for another
    call. Exit code 0 if all is measured, 1 if some is left.
    """
    from acdc_dagster.backends.calibration import calibrate_here
    from acdc_dagster.deployment import Deployment

    done = calibrate_here(Deployment.load(), model, minutes, _print)
    _print(
        f"{len(done.measured)} measured, {len(done.before)} were there, {len(done.left)} left"
        + (f"; next: {done.left[0]}. Call it again, with more --minutes." if done.left else ".")
    )
    sys.exit(1 if done.left else 0)


@main.command()
@click.argument("job")
@click.option("--partition", help="Partition key; needed if the job has partitions.")
def run(job: str, partition: str | None) -> None:
    """Materialise all five assets of JOB for one partition, and say what came out.

    The run is recorded where `dagster dev` looks, so that it can be followed in the UI too.
    """
    from acdc_dagster.run import run_job

    sys.exit(0 if run_job(job, partition) else 1)


@main.command("dead-letter")
@click.argument("job")
@click.option("--class", "error_class", type=click.Choice(FAILURE_CLASSES), help="Only of this.")
@click.option("--partition", help="Only of this partition.")
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write their requests to this file, as an OpenAI batch.",
)
@click.option("--requeue", "again", is_flag=True, help="Have the next run ask them again.")
def dead_letter(
    job: str, error_class: str | None, partition: str | None, file: Path | None, *, again: bool
) -> None:
    """List the dead letters of JOB: what got no usable answer, why, and what to do."""
    from acdc_dagster.deployment import Deployment
    from acdc_dagster.reconcile.dead_letters import dead_letters, export, listing, requeue
    from acdc_dagster.tables import Tables

    deployment = Deployment.load()
    name = deployment.job(job).name
    tables = Tables(deployment.tables_root, name, deployment.environment.storage_options)
    letters = dead_letters(tables, partition, error_class)
    _print(f"{name}: {letters.height} dead letter{'' if letters.height == 1 else 's'}")
    for line in listing(letters):
        _print(f"  {line}")
    if file is not None:
        export(tables, letters, file)
        _print(f"Their requests are in {file}.")
    if again and letters.height:
        requeue(tables, letters)
        keys = ", ".join(letters["partition_key"].unique().sort())
        _print(f"Queued again. Run {name} for: {keys}.")


@main.command()
@click.option("--tables", "root", required=True, help="Root of the tables.")
@click.option("--job", required=True, help="The job's name.")
@click.option("--partition", required=True, help="Partition key.")
@click.option("--shard", required=True, type=int, help="Number of the shard in the plan.")
@click.option("--run-id", default="", help="Recorded with each result.")
@click.option(
    "--attempt",
    default=1,
    type=click.IntRange(min=1),
    show_default=True,
    help="From 2 on: of the partition's retries.",
)
@click.option("--stop-with-parent", is_flag=True, help="Stop when standard input is closed.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port."
)
def worker(
    root: str,
    job: str,
    partition: str,
    shard: int,
    run_id: str,
    attempt: int,
    metrics_port: int | None,
    *,
    stop_with_parent: bool,
) -> None:
    """Answer what is left of one shard of a planned partition.

    Tells its progress as lines of JSON on standard output; ACDC_STORAGE_OPTIONS holds a JSON object
    of options for the tables' storage. SIGTERM lets running requests end within the plan's grace
    period; a second one ends at once. Exit code 0 if the shard is complete, 3 if it was told to
    stop, 1 if it failed; what was answered is committed in these cases. 4: ended at once.
    """
    from acdc_dagster.inference.process import run_worker
    from acdc_dagster.inference.worker import WorkOrder
    from acdc_dagster.tables import Tables

    storage_options = _storage_options()
    show = None
    if metrics_port is not None:
        from acdc_dagster.inference.prometheus import serve_metrics

        show = serve_metrics(metrics_port, job, partition)
    order = WorkOrder(partition, shard, run_id, attempt)
    tables = Tables(root, job, storage_options)
    sys.exit(run_worker(order, tables, stop_with_parent=stop_with_parent, show=show))


def _storage_options() -> dict[str, str]:
    """Those of ACDC_STORAGE_OPTIONS; what they say may be a secret and is not repeated."""
    try:
        return msgspec.json.decode(
            os.environ.get("ACDC_STORAGE_OPTIONS", "{}"), type=dict[str, str]
        )
    except msgspec.DecodeError:
        raise DeclarationError(
            "ACDC_STORAGE_OPTIONS is no JSON object of texts.", 'Write it like {"region": "eu"}.'
        ) from None


if __name__ == "__main__":
    main(prog_name="acdc")
