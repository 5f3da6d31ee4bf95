"""The run's log on a terminal: what a person wants to follow, progress on one line."""

import logging
import sys
from typing import Any, TextIO

import dagster as dg

# Set with `extra=` on a message that replaces the one before it on a terminal.
PROGRESS = "acdc_progress"


class ConsoleHandler(logging.Handler):
    """Prints our own messages and failures; leaves Dagster's bookkeeping to its UI."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.INFO)
        self._stream = stream
        self._line_is_open = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; a progress message goes over the one before it."""
        meta: dict[str, Any] = getattr(record, "dagster_meta", None) or {}
        event: dg.DagsterEvent | None = meta.get("dagster_event")
        if event is None:
            text = str(meta.get("orig_message") or record.getMessage())
        elif event.is_step_failure:
            text = f"failed: {_reason(event)}"
        else:
            return
        if text.startswith("Dependencies for step"):  # the failure above says why
            return
        stage = str(meta.get("step_key") or "").rpartition("__")[2]
        try:
            self._print(f"{stage:<16} {text}", stays_open=bool(getattr(record, PROGRESS, False)))
        except (OSError, ValueError):  # a closed terminal must not stop the run
            self.handleError(record)

    def _print(self, line: str, *, stays_open: bool) -> None:
        if not self._stream.isatty():
            self._stream.write(line + "\n")
        else:
            clear = "\r\x1b[2K" if self._line_is_open else ""
            self._stream.write(clear + line + ("" if stays_open else "\n"))
            self._line_is_open = stays_open
        self._stream.flush()


def _reason(event: dg.DagsterEvent) -> str:
    failure = event.step_failure_data
    if failure.user_failure_data is not None and failure.user_failure_data.description:
        return failure.user_failure_data.description
    return failure.error.to_string() if failure.error is not None else "no reason given"


def _console_logger(_init_context: dg.InitLoggerContext) -> logging.Logger:
    logger = logging.Logger("acdc", logging.INFO)
    logger.addHandler(ConsoleHandler(sys.stderr))
    return logger


console_logger = dg.LoggerDefinition(
    _console_logger,
    description="Messages and progress of a run, without Dagster's bookkeeping.",
)
