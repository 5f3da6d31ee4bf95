"""What a person sees: a real `dagster dev` over a real engine, looked at with a real Chromium.

`ACDC_SCREENSHOTS=docs/images pytest tests/test_ui.py` makes the pictures of the README: the same
walk over the whole sample catalogue, which takes some minutes more.
"""

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml
from deltalake import write_deltalake
from playwright.sync_api import Locator, Page, expect, sync_playwright

from acdc_dagster.lineage.assets import STAGES
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables

pytestmark = [pytest.mark.browser, pytest.mark.engine]

REPOSITORY = Path(__file__).parents[1]
PICTURES = os.environ.get("ACDC_SCREENSHOTS")
JOB, DAYS = "product_tagging", ("2026-11-02", "2026-11-03", "2026-11-04")
UP_SECONDS, RUN_SECONDS = 120, 900 if PICTURES else 300


@dataclass(frozen=True)
class Server:
    """A running `dagster dev`."""

    url: str
    folder: Path
    log: Path

    def tail(self) -> str:
        """The last lines of its log."""
        return "the end of dagster dev's log:\n" + self.log.read_text(errors="replace")[-4000:]


@pytest.fixture(scope="module")
def chromium() -> str:
    """The system's Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    missing = "There is no Chromium on the PATH; install it: apt-get install chromium"
    if os.environ.get("ACDC_REQUIRE_BROWSER") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def server(
    chromium: str, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`dagster dev` over a copy of the repository's deployment with a few products a day."""
    folder = tmp_path_factory.mktemp("deployment")
    for name in ("assets", "resources"):
        shutil.copytree(REPOSITORY / name, folder / name)
    for name in ("dagster.yaml", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / "data").mkdir()
    (folder / "data" / "models").symlink_to(model_path.parent)
    write_catalogue(folder)
    if not PICTURES:  # a second engine to load helps no dozen requests
        place = folder / "resources" / "local.yaml"
        environment = yaml.safe_load(place.read_text())
        environment["backends"]["local"]["replicas"] = 1
        place.write_text(yaml.safe_dump(environment))
    # Dagster greets a newcomer with a dialog over everything, once.
    (folder / ".nux").mkdir()
    (folder / ".nux" / "nux.yaml").write_text("seen: 1\n")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("ACDC_")}
    log = folder / "dagster-dev.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            env={**settings, "DAGSTER_HOME": str(folder)},
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", folder, log)
    try:
        wait_until_up(server, process)
        yield server
    finally:
        stop(process)


@pytest.fixture(scope="module")
def page(chromium: str, server: Server) -> Iterator[Page]:
    """A page of a new browser, its navigation folded away."""
    flags = (
        "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags.split())
        context = browser.new_context(
            base_url=server.url,
            viewport={"width": 1400, "height": 700},
            device_scale_factor=1.5 if PICTURES else 1,
            locale="en-US",
            timezone_id="UTC",
        )
        context.set_default_timeout(30_000)
        expect.set_options(timeout=30_000)
        page = context.new_page()
        page.goto("/jobs")
        page.get_by_text("Hide navigation").click()
        yield page
        browser.close()


@pytest.fixture(autouse=True)
def _told(server: Server) -> Iterator[None]:
    """The server's log beside the report of a test that failed."""
    yield
    sys.stdout.write(server.tail())


@pytest.fixture(scope="module")
def run_url(page: Page, server: Server) -> str:
    """The page of a run of the first day, launched by clicking and waited for."""
    try:
        return materialise(page, DAYS[0])
    except BaseException as error:
        error.add_note(server.tail())
        raise


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder for screenshots."""
    folder = Path(PICTURES) if PICTURES else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_each_job_is_a_group_of_its_five_stages(page: Page) -> None:
    """A job's group shows its five assets from left to right; each job has a group of its own."""
    page.goto("/asset-groups")
    for job in (JOB, "ticket_triage"):
        expect(page.get_by_text(job, exact=True).first).to_be_visible()

    for job in ("ticket_triage", JOB):
        graph = open_graph(page, job)
        expect(graph).to_have_count(len(STAGES))
        boxes = [graph.filter(has=page.get_by_text(stage, exact=True)) for stage in STAGES]
        from_left = [(box.bounding_box() or {})["x"] for box in boxes]
        assert from_left == sorted(from_left)


def test_a_partition_is_materialised_by_clicking(page: Page, run_url: str, pictures: Path) -> None:
    """The run's log tells progress and the ledger in the job's own words, with no noise between."""
    page.goto(run_url)
    expect(page.get_by_text(f"partition: {DAYS[0]}")).to_be_visible()
    only_messages(page)
    expect(page.get_by_text(re.compile(r"^(\d+)/\1 requests \(100 %\)")).last).to_be_visible()
    expect(page.get_by_text(re.compile(r"^\d+ input rows = \d+ outputs \+ "))).to_be_visible()
    page.get_by_role("img", name="expand_arrows").last.click()  # the log without the time bars
    page.locator(":focus").blur()
    page.screenshot(path=pictures / "run.png")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.usefixtures("run_url")
def test_an_asset_shows_what_its_table_holds(
    page: Page, server: Server, pictures: Path, stage: TableName
) -> None:
    """The latest materialisation says how many rows, where they lie, and shows the first ones."""
    tables = Tables(str(server.folder / "data" / "tables"), JOB)
    page.goto(f"/assets/{JOB}/{stage}?view=partitions&partition={DAYS[0]}")
    expect(value_of(page, "dagster/partition_row_count")).to_have_text(
        str(tables.count(stage, DAYS[0]))
    )
    expect(value_of(page, "location")).to_contain_text(f"/data/tables/{JOB}/{stage}")
    expect(value_of(page, "preview").get_by_role("row").nth(1)).to_be_visible()
    if stage == "inference":
        expect(value_of(page, "prefix_hit_rate")).to_have_text(re.compile(r"^\d+(\.\d+)?( %)?$"))
        expect(value_of(page, "tokens_per_second")).to_have_text(re.compile(r"^[\d,.]+$"))
    if stage == "outputs":
        page.goto(f"/assets/{JOB}/{stage}?view=events")
        page.set_viewport_size({"width": 1400, "height": 900})
        row_of(page, "preview").get_by_role("cell").first.scroll_into_view_if_needed()
        page.screenshot(path=pictures / "outputs.png")


@pytest.mark.usefixtures("run_url")
def test_the_graph_shows_what_is_materialised(page: Page, pictures: Path) -> None:
    """After a run each stage tells how much of its partitions is filled, and the check its pass."""
    if PICTURES:
        for day in DAYS[1:]:
            materialise(page, day)
    page.set_viewport_size({"width": 1400, "height": 520})
    graph = open_graph(page, JOB)
    filled = "100% filled" if PICTURES else "33% filled"
    expect(graph.filter(has_text=filled)).to_have_count(len(STAGES))
    expect(graph.filter(has_text="outputs")).to_contain_text("8 / 8 Passed")
    page.screenshot(path=pictures / "asset_graph.png")


def write_catalogue(folder: Path) -> None:
    """The sample catalogue, cut to a dozen products a day with one broken among them."""
    place = folder / "assets" / JOB / "catalogue.py"
    spec = importlib.util.spec_from_file_location("catalogue", place)
    assert spec is not None
    assert spec.loader is not None
    catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    rng = random.Random(20261102)
    rows = []
    for number in range(len(DAYS)):
        products = catalogue.products(date.fromisoformat(DAYS[0]) + timedelta(days=number), rng)
        if not PICTURES:
            products = [*products[:12], {**products[12], "description": None}]
        rows += products
    write_deltalake(
        str(folder / "data" / "catalogue"), pl.DataFrame(rows, infer_schema_length=None)
    )


def wait_until_up(server: Server, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the server answers; fail with its log if it does not."""
    deadline = time.monotonic() + UP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.url}/server_info", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"dagster dev did not come up; {server.tail()}")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process and all it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def open_graph(page: Page, job: str) -> Locator:
    """Open a job's graph; its nodes, once they are laid out in full size."""
    page.goto(f"/locations/acdc/asset-groups/{job}")
    graph = page.locator("svg foreignObject")
    expect(graph.filter(has_text="Latest event")).to_have_count(len(STAGES))
    graph.first.element_handle().wait_for_element_state("stable")
    return graph


def materialise(page: Page, day: str) -> str:
    """Materialise one partition as a person would, and wait for its end; the address of the run."""
    open_graph(page, JOB)
    page.get_by_role("button", name="Materialize all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Showing 3 of 3 partitions")).to_be_visible()
    partitions = dialog.get_by_role("textbox").first
    partitions.fill(day)
    partitions.press("Enter")
    dialog.get_by_role("button", name="Launch 1 run").click()
    page.get_by_text("View", exact=True).click()
    page.wait_for_url("**/runs/*")
    only_messages(page)
    progress = page.get_by_text(re.compile(r"^\d+/\d+ requests \("))
    end = page.get_by_text(re.compile("^(Success|Failure)$"))
    expect(progress.or_(end).first).to_be_visible(timeout=RUN_SECONDS * 1000)
    expect(progress.first).to_be_visible()
    expect(end).to_be_visible(timeout=RUN_SECONDS * 1000)
    expect(end).to_have_text("Success")
    return page.url


def only_messages(page: Page) -> None:
    """Hide Dagster's own events in the log of a run."""
    page.get_by_role("button", name="Levels").click()
    events = page.get_by_role("menuitem").filter(has_text="event")
    if events.get_by_role("checkbox").is_checked():
        events.click()
    page.keyboard.press("Escape")


def value_of(page: Page, key: str) -> Locator:
    """The cell beside a metadata key."""
    return row_of(page, key).get_by_role("cell").nth(1)


def row_of(page: Page, key: str) -> Locator:
    """The row of a metadata key."""
    cell = page.get_by_role("cell", name=key, exact=True)
    return page.get_by_role("row").filter(has=cell).first
