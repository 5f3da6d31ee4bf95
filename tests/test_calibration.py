"""`acdc calibrate` as a command."""

import pytest
from click.testing import CliRunner
from support import MODEL

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment


def test_what_cannot_be_calibrated_is_told(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown model names those that are known; no time at all is refused."""
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    unknown = CliRunner().invoke(main, ["calibrate", "smollm3"])
    assert (unknown.exit_code, f"Choose one of: {MODEL}" in unknown.stderr) == (1, True)
    never = CliRunner().invoke(main, ["calibrate", MODEL, "--minutes", "0"])
    assert never.exit_code == 2
