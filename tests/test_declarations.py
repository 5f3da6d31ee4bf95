"""Jobs and environments as a user writes them: what a mistake is told as."""

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import MODEL, Declare

from acdc_dagster.declared import read_yaml
from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, DeclarationError, ModelError
from acdc_dagster.job import Job
from acdc_dagster.partitions import Partitions

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}

TABLE = {"table": "items", "id_column": "id"}
BY_DAY = {**TABLE, "partition_column": "day"}
FILES = {"requests": "in/*.jsonl"}


def job(**attributes: Any) -> dict[str, Any]:
    """The attributes of a job over a table, with these changes."""
    return {"source": TABLE, "model": MODEL, **attributes}


def split(**changes: Any) -> dict[str, Any]:
    """A policy for texts that are too long, with these changes."""
    return {"split": {"column": "title", "tokens": 100, "overlap": 20, **changes}}


def line_of(file: Path, key: str) -> int:
    """The only line of a YAML file where this key, or list item, stands."""
    (found,) = [
        number
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if line.strip().split(":")[0] in (key, f"- {key}")
    ]
    return found


def assert_told(error: AcdcError, *said: object) -> None:
    """The problem says all of this, and there is a remedy."""
    for part in said:
        assert str(part) in error.problem
    assert error.remedy.strip()
    assert f"Remedy: {error.remedy}" in str(error)


def refused(declare: Declare, attributes: dict[str, Any], **files: str) -> DeclarationError:
    """What a job with these attributes is refused with."""
    with pytest.raises(DeclarationError) as caught:
        declare("job", attributes, **{"prompt_dot_md": "{{ title }}", **files})
    return caught.value


@pytest.fixture
def defs(deployment: Deployment) -> Path:
    """The declaration of the job that `refused` writes."""
    return deployment.root / "assets" / "job" / "defs.yaml"


@pytest.mark.parametrize(
    ("attributes", "field", "near", "allowed"),
    [
        (job(modle="x"), "modle", "model", "max_rejected, retries"),
        (job(sampling={"temprature": 0}), "temprature", "temperature", "top_p, top_k, min_p"),
        (job(source={**TABLE, "id_colum": "x"}), "id_colum", "id_column", "table, format"),
        (
            job(source=BY_DAY, partitions={"cadence": "daily", "begin": "2026-01-01"}),
            "begin",
            None,
            "cadence, start, end, keys",
        ),
    ],
)
def test_an_unknown_field_names_the_known_ones(
    declare: Declare,
    defs: Path,
    attributes: dict[str, Any],
    field: str,
    near: str | None,
    allowed: str,
) -> None:
    """With the file, the field's line, the name that was probably meant, and all allowed ones."""
    error = refused(declare, attributes)
    assert_told(error, f"{defs}:{line_of(defs, field)}: ", f".{field}: unknown field", allowed)
    assert ("did you mean" in error.problem) is (near is not None)
    assert near is None or f"did you mean {near}?" in error.problem


@pytest.mark.parametrize(
    ("attributes", "key", "said"),
    [
        (job(source={**TABLE, "format": "xml"}), "format", ["'delta'", "'parquet'", "'csv'"]),
        (
            job(source=BY_DAY, partitions={"cadence": "dayly", "start": "2026-01-01"}),
            "cadence",
            ["'hourly'", "'daily'", "'weekly'", "'monthly'", "'static'", "'none'"],
        ),
        (job(backend="slurm"), "backend", ["'local'"]),
        *(
            (job(max_rejected=limit), "max_rejected", ["count", "share", "0.05"])
            for limit in (-1, -0.5, 1.5, True, "5 %", [5])
        ),
        (job(sampling={"temperature": 3}), "temperature", ["2"]),
        (job(sampling={"temperature": "hot"}), "temperature", ["number"]),
        (job(sampling={"max_tokens": 0}), "max_tokens", ["1"]),
        (job(sampling={"seed": 2**63}), "seed", ["9223372036854775807"]),
        (job(sampling={"stop": "END"}), "stop", ["list"]),
        (job(owners=["team:a", "bob"]), "owners", ["'bob'", "team:name", "e-mail"]),
        (job(owners=["team:"]), "owners", ["'team:'", "team:name"]),
        (job(owners=["a@b"]), "owners", ["'a@b'", "e-mail"]),
        (job(schedule="every day"), "schedule", ["five fields"]),
        (job(schedule="a b c d e"), "schedule", ["cron"]),
        (job(source={**TABLE, "asset": "job/outputs"}), "asset", ["job/outputs", "itself"]),
        *(
            (job(source=BY_DAY, partitions={"cadence": "static", "keys": ["a", key]}), key, [said])
            for key, said in (
                ("b...c", "'...'"),
                ("x" * 250, "too long for the name of a folder"),
            )
        ),
        (job(timezone="Mars/Phobos"), "timezone", ["Mars/Phobos"]),
        (job(too_long="shorten"), "too_long", ["'shorten'", "reject", "split"]),
        (job(too_long=split(tokens=8)), "tokens", ["16"]),
        (job(too_long=split(overlap=51)), "split", ["at most half of tokens"]),
        (job(too_long={"split": {"tokens": 100}}), "split", ["column"]),
        (
            job(too_long=split(), answer_schema={"type": "object"}),
            "attributes",
            ["too_long.split", "free text"],
        ),
        (job(source=None), "source", ["source"]),
        (job(source={"table": "items"}), "source", ["id_column"]),
        (job(source={}), "source", ["table, requests"]),
        (job(source={**TABLE, **FILES}), "source", ["table, requests"]),
        (job(source={**FILES, "id_column": "id"}), "source", ["id_column", "belong to a table"]),
        (job(source={**FILES, "make_ids": True}), "source", ["make_ids", "belong to a table"]),
        (job(source={**FILES, "version": 3}), "source", ["version", "belong to a table"]),
        (job(source={"table": "items"}), "source", ["make_ids: true"]),
        (job(source={**TABLE, "make_ids": True}), "source", ["one of: id_column, make_ids"]),
        (job(source={**TABLE, "version": -1}), "version", ["0"]),
        (
            job(source={**TABLE, "version": 3, "format": "csv"}),
            "source",
            ["version belongs to a Delta table", "csv"],
        ),
        (
            job(source=BY_DAY, partitions={"cadence": "static", "keys": ["a", 5]}),
            "5",
            ["string"],
        ),
        (
            job(source=BY_DAY, partitions={"cadence": "daily", "start": "yesterday"}),
            "start",
            ["date"],
        ),
        (job(source=BY_DAY, partitions={"cadence": "daily"}), "partitions", ["needs start"]),
        (job(source=BY_DAY, partitions={"cadence": "static"}), "partitions", ["keys"]),
        (
            job(source=BY_DAY, partitions={"cadence": "static", "keys": ["a"], "end": "2026"}),
            "partitions",
            ["start and end belong to a time cadence"],
        ),
        (
            job(source=BY_DAY, partitions={"cadence": "static", "keys": ["a", "b", "a"]}),
            "partitions",
            ["'a' twice"],
        ),
        *(
            (job(source=BY_DAY, partitions={"cadence": cadence, **times}), "partitions", [said])
            for cadence, times, said in (
                ("daily", {"start": "2026-11-02T10:00"}, "start: no daily"),
                ("hourly", {"start": "2026-11-02T10:30"}, "start: no hourly"),
                ("weekly", {"start": "2026-11-02", "end": "2026-11-08"}, "end: no weekly"),
                ("monthly", {"start": "2026-11-02", "end": "2026-12-01"}, "end: no monthly"),
                ("monthly", {"start": "2026-01-31"}, "not all months have a day 31"),
            )
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_line(
    declare: Declare, defs: Path, attributes: dict[str, Any], key: str, said: list[str]
) -> None:
    """With the file, the line, and what is allowed there."""
    error = refused(declare, attributes)
    assert_told(error, f"{defs}:{line_of(defs, key)}: ", *said)


@pytest.mark.parametrize(
    ("source", "partitions"),
    [
        (TABLE, {"cadence": "daily", "start": "2026-01-01"}),
        (BY_DAY, {"cadence": "none"}),
        ({**TABLE, "table": "in/{partition}.csv"}, {"cadence": "none"}),
        (FILES, {"cadence": "static", "keys": ["a"]}),
        ({"requests": "in/{partition}.jsonl"}, {"cadence": "none"}),
    ],
)
def test_partitions_and_source_must_agree(
    declare: Declare, defs: Path, source: dict[str, str], partitions: dict[str, Any]
) -> None:
    """A job whose rows are not cut as its partitions say is refused before it runs."""
    error = refused(declare, job(source=source, partitions=partitions))
    assert_told(error, f"{defs}:", "partitions and source must agree", "partition_column")


@pytest.mark.parametrize(
    "field", [{"prompt": "p.md"}, {"sampling": {"top_p": 1}}, {"answer_schema": {"type": "object"}}]
)
def test_request_files_bring_their_own(declare: Declare, defs: Path, field: dict[str, Any]) -> None:
    """What the lines of a request file say is not declared a second time."""
    assert_told(refused(declare, job(source=FILES, **field)), defs, *field, "request files")


def test_request_files_have_no_column_to_split(declare: Declare, defs: Path) -> None:
    """What they may say of rows that are too long is that they are rejected."""
    assert_told(refused(declare, job(source=FILES, too_long=split())), defs, "too_long.split")
    declare("job", job(source=FILES, too_long="reject"))


def test_all_faults_are_told_at_once(declare: Declare, defs: Path) -> None:
    """Each fault has a line of its own, so that one round of mending is enough."""
    error = refused(declare, job(modle="x", sampling={"top_p": 7}, owners=["bob"]))
    places = {line.split(": ")[0] for line in error.problem.splitlines()}
    assert places == {f"{defs}:{line_of(defs, key)}" for key in ("modle", "top_p", "owners")}


def write(defs: Path, text: str) -> Path:
    """The folder of a job whose declaration is this text."""
    defs.parent.mkdir(parents=True, exist_ok=True)
    defs.write_text(text)
    return defs.parent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", [":1: ", "type", "attributes", "required"]),
        ("type: x\n", [":1: ", "'acdc_dagster.BatchInferenceComponent'", "attributes"]),
        ("attributes: {source: {requests: a}}", [":1: ", "model", "required"]),
        ("type: x\nattributes: [a]\n", [":2: ", "attributes"]),
        ("type: x\nattributes:\n\tmodel: a\n", ["line 3", "token"]),
        ("attributes:\n  owners: [a\n  model: b\n", ["line 3"]),
    ],
)
def test_a_file_that_is_no_declaration(defs: Path, text: str, said: list[str]) -> None:
    """Missing parts and broken YAML are told with the file, and the line where there is one."""
    with pytest.raises(DeclarationError) as caught:
        Job.load(write(defs, text))
    assert_told(caught.value, defs, *said)


def test_a_missing_declaration(deployment: Deployment) -> None:
    """A folder without defs.yaml is told as that."""
    folder = deployment.root / "assets" / "nothing"
    with pytest.raises(DeclarationError) as caught:
        Job.load(folder)
    assert_told(caught.value, folder / "defs.yaml", "does not exist")


@pytest.mark.parametrize("name", ["2-jobs", "a b", "über", "a.b"])
def test_a_folder_that_cannot_name_a_job(declare: Declare, name: str) -> None:
    """The folder's name becomes names of tables and assets, so it is checked."""
    with pytest.raises(DeclarationError) as caught:
        declare(name, job(source=FILES))
    assert_told(caught.value, Path(name) / "defs.yaml", repr(name))
    assert "letter" in caught.value.remedy


@pytest.mark.parametrize("name", ["prompt.md", "other.md"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"caf\xe9", "cannot be read"),
    ],
)
def test_a_prompt_file_that_cannot_be_used(
    declare: Declare, defs: Path, name: str, content: bytes | None, said: str
) -> None:
    """A table needs a prompt: the file is named, and what is wrong with it."""
    defs.parent.mkdir(parents=True)
    if content is not None:
        (defs.parent / name).write_bytes(content)
    with pytest.raises(DeclarationError) as caught:
        declare("job", job(prompt=name))
    assert_told(caught.value, defs.parent / name, said)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "object", "properties": 5}, "5"),
        ({**OBJECT, "required": "a"}, "required"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "/nowhere"),
        ({"type": "array"}, "type: object"),
        ({}, "type: object"),
    ],
)
@pytest.mark.parametrize("inline", [True, False])
def test_a_schema_that_cannot_be_used(
    declare: Declare, defs: Path, schema: dict[str, Any], said: str, inline: bool
) -> None:
    """A wrong schema is told with its place: the line of defs.yaml, or its own file."""
    if inline:
        error = refused(declare, job(answer_schema=schema))
        assert_told(error, f"{defs}:{line_of(defs, 'answer_schema')}: ", "answer_schema", said)
    else:
        error = refused(
            declare, job(answer_schema="answer.json"), answer_dot_json=json.dumps(schema)
        )
        assert_told(error, defs.with_name("answer.json"), "answer_schema", said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("", "not valid JSON"),
        ("[]", "answer_schema"),
        ("true", "answer_schema"),
        ("{1: 2, type: object}", "not valid JSON: Expecting property name"),
        ('{"type": "object",\n', "line 2"),
    ],
)
def test_a_schema_file_that_is_no_schema(
    declare: Declare, defs: Path, text: str | None, said: str
) -> None:
    """A schema file that is missing or holds something else is named."""
    files = {} if text is None else {"answer_dot_json": text}
    error = refused(declare, job(answer_schema="answer.json"), **files)
    assert_told(error, defs.with_name("answer.json"), said)


def test_what_is_right_is_taken(declare: Declare) -> None:
    """A whole declaration gives the job with its files read."""
    found = declare(
        "job",
        job(
            description="Tags products.",
            source={**BY_DAY, "format": "delta"},
            prompt="tag.md",
            sampling={"temperature": 0.5, "seed": 7, "stop": ["END"]},
            answer_schema="answer.json",
            partitions={"cadence": "weekly", "start": date(2026, 11, 1), "end": "2026-12-06"},
            schedule="0 2 * * *",
            timezone="Europe/Berlin",
            owners=["team:catalogue", "a@example.org"],
        ),
        tag_dot_md="{{ title }}\n",
        answer_dot_json=json.dumps(OBJECT),
    )
    assert (found.name, found.prompt, found.answer_schema) == ("job", "{{ title }}\n", OBJECT)
    assert [(column.name, column.kind) for column in found.answer_columns] == [("a", "string")]
    assert found.declared.partitions.start == date(2026, 11, 1)
    assert found.declared.sampling.as_body()["seed"] == 7


@pytest.mark.parametrize(
    ("name", "format_", "told"),
    [
        ("items", None, "delta"),
        ("items.parquet", None, "parquet"),
        ("ITEMS.CSV", None, "csv"),
        ("s3://bucket/items.csv", None, "csv"),
        ("in/*.csv.gz", None, "csv"),
        ("items.ndjson", None, "ndjson"),
        ("items.jsonl.gz", None, "ndjson"),
        ("items.csv", "delta", "delta"),
    ],
)
def test_the_format_is_told_from_the_name(
    declare: Declare, name: str, format_: str | None, told: str
) -> None:
    """The name of a table says its format, unless the job does."""
    source = {**TABLE, "table": name} | ({"format": format_} if format_ else {})
    found = declare("job", job(source=source), prompt_dot_md="x")
    assert found.declared.source.table_format == told


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"description": "Other words"}, True),
        ({"owners": ["team:b"]}, True),
        ({"sampling": {"max_tokens": 256}}, True),  # the default
        ({"too_long": "reject"}, True),
        ({"too_long": split()}, False),
        ({"sampling": {"max_tokens": 8}}, False),
        ({"answer_schema": OBJECT}, False),
        ({"model": "other"}, False),
    ],
)
def test_the_prompt_version_follows_what_is_asked(
    declare: Declare, change: dict[str, Any], same: bool
) -> None:
    """It changes with prompt, schema, sampling and model, and with nothing else."""
    version = declare("job", job(), prompt_dot_md="x").prompt_version
    assert (declare("job", job(**change), prompt_dot_md="x").prompt_version == version) is same
    assert declare("job", job(), prompt_dot_md="y").prompt_version != version


def change_environment(deployment: Deployment, **changes: Any) -> Path:
    """Write other values into the environment's file."""
    path = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**environment, **changes}, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"modles": {}}, "modles", ["did you mean models?", "tables, storage_options, models"]),
        ({"backends": {"slurm": {}}}, "slurm", ["unknown field", "local"]),
        ({"backends": {"local": {"replicas": 0}}}, "replicas", ["1"]),
        ({"backends": {"local": {"engine": {"block": 1}}}}, "block", ["did you mean block_size?"]),
        ({"models": {MODEL: {"path": 5}}}, "path", ["string"]),
        ({"models": {MODEL: {"path": "x", "max_model_len": 0}}}, "max_model_len", ["1"]),
    ],
)
def test_a_wrong_environment_is_told_with_its_line(
    deployment: Deployment, changes: dict[str, Any], key: str, said: list[str]
) -> None:
    """An environment's mistakes are told as a job's are."""
    path = change_environment(deployment, **changes)
    with pytest.raises(DeclarationError) as caught:
        Deployment.load(deployment.root, "local")
    assert_told(caught.value, f"{path}:{line_of(path, key)}: ", key, *said)


def test_an_unknown_environment_lists_the_others(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACDC_ENV that names no file of resources/ is told with those that are there."""
    shutil.copy(
        deployment.root / "resources" / "local.yaml", deployment.root / "resources" / "gpu.yaml"
    )
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    monkeypatch.setenv("ACDC_ENV", "gpu")
    assert Deployment.load().env == "gpu"
    monkeypatch.setenv("ACDC_ENV", "prod")
    with pytest.raises(DeclarationError) as caught:
        Deployment.load()
    assert_told(caught.value, deployment.root / "resources" / "prod.yaml")
    assert "gpu, local" in caught.value.remedy


def test_a_folder_that_is_no_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started elsewhere, the remedy is the deployment folder."""
    monkeypatch.delenv("ACDC_ENV", raising=False)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(tmp_path))
    with pytest.raises(DeclarationError) as caught:
        Deployment.load()
    assert_told(caught.value, tmp_path / "resources" / "local.yaml")
    assert "ACDC_DEPLOYMENT" in caught.value.remedy


def test_an_unknown_job_lists_the_jobs(deployment: Deployment, declare: Declare) -> None:
    """A name that no folder has is told with those that are declared, in folders of any depth."""
    with pytest.raises(DeclarationError) as caught:
        deployment.job("tagging")
    assert "none declared" in caught.value.remedy
    for name in ("tickets", "team/tags"):
        declare(name, job(source=FILES))
    assert deployment.job("tags").folder == deployment.root / "assets" / "team" / "tags"
    with pytest.raises(DeclarationError) as caught:
        deployment.job("tagging")
    assert_told(caught.value, "'tagging'", deployment.root / "assets")
    assert "tags, tickets" in caught.value.remedy


def test_one_name_for_two_jobs_is_refused(deployment: Deployment, declare: Declare) -> None:
    """Two folders of one name would write the same tables: both are named, neither runs."""
    for name in ("a/tags", "b/tags"):
        declare(name, job(source=FILES))
    with pytest.raises(DeclarationError) as caught:
        deployment.job("tags")
    assert_told(caught.value, Path("a") / "tags", Path("b") / "tags")


def test_an_unknown_model_lists_the_models(deployment: Deployment) -> None:
    """A model that the environment does not declare is told with those that it does."""
    with pytest.raises(ModelError) as caught:
        deployment.model("gpt-5")
    assert_told(caught.value, "'gpt-5'", deployment.root / "resources" / "local.yaml")
    assert MODEL in caught.value.remedy


@pytest.mark.parametrize("missing", ["", "config.json", "tokenizer.json"])
def test_a_model_that_is_not_there(deployment: Deployment, model_path: Path, missing: str) -> None:
    """A missing folder, or file in it, is named, and the environment that says where it is."""
    folder = deployment.root / "models" / "small"
    if missing:
        folder.mkdir(parents=True)
        for name in {"config.json", "tokenizer.json"} - {missing}:
            shutil.copy(model_path / name, folder)
    path = change_environment(deployment, models={"small": {"path": "models/small"}})
    with pytest.raises(ModelError) as caught:
        Deployment.load(deployment.root, "local").model("small")
    assert_told(caught.value, "'small'", folder, missing)
    assert str(path) in caught.value.remedy


@pytest.mark.parametrize("config", ["{", "[]", "null", '{"max_position_embeddings": "long"}'])
def test_a_model_whose_config_is_broken(
    deployment: Deployment, model_path: Path, config: str
) -> None:
    """A config.json that cannot be understood is named, whatever it holds."""
    folder = deployment.root / "small"
    folder.mkdir()
    shutil.copy(model_path / "tokenizer.json", folder)
    (folder / "config.json").write_text(config)
    change_environment(deployment, models={"small": {"path": "small"}})
    with pytest.raises(ModelError) as caught:
        Deployment.load(deployment.root, "local").model("small")
    assert_told(caught.value, folder / "config.json")


@pytest.mark.parametrize(("declared", "length"), [(None, 8192), (100, 100), (10**6, 8192)])
def test_the_context_is_the_smaller_limit(
    deployment: Deployment, model_path: Path, declared: int | None, length: int
) -> None:
    """An environment can shorten a model's own context, never stretch it."""
    place = {"path": str(model_path), "max_model_len": declared}
    change_environment(deployment, models={MODEL: place})
    assert Deployment.load(deployment.root, "local").model(MODEL).context_length == length


def test_a_models_revision_is_declared_or_told_from_its_files(
    deployment: Deployment, model_path: Path
) -> None:
    """Without a declared revision, a change of the model's files is another revision."""
    folder = deployment.root / "small"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(model_path / name, folder)

    def revision(**declared: str) -> str:
        change_environment(deployment, models={"small": {"path": "small", **declared}})
        return Deployment.load(deployment.root, "local").model("small").revision

    before = revision()
    assert revision() == before
    assert revision(revision="r1") == "r1"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert revision() not in (before, "r1")


@pytest.mark.parametrize("key", ["", " ", "a\tb", "a\nb", "a\0b", "é" * 50])
def test_a_key_that_can_be_no_partition(declare: Declare, defs: Path, key: str) -> None:
    """Dagster or the storage would refuse it, without the line."""
    partitions = {"cadence": "static", "keys": ["ok", key]}
    error = refused(declare, job(source=BY_DAY, partitions=partitions))
    assert_told(error, f"{defs}:", "partitions.keys.1")


@pytest.mark.parametrize(
    ("partitions", "known", "unknown"),
    [
        ({"cadence": "static", "keys": ["a", "b"]}, ["a", "b"], ["zz", "all", ""]),
        (
            {"cadence": "daily", "start": date(2026, 11, 2), "end": date(2026, 11, 4)},
            ["2026-11-02", "2026-11-03"],
            ["2026-11-01", "2026-11-04", "zz", "2026-11-02-00:00"],
        ),
        ({"cadence": "weekly", "start": date(2026, 11, 2)}, ["2026-11-09"], ["2026-11-10"]),
        ({"cadence": "monthly", "start": date(2026, 11, 2)}, ["2026-12-02"], ["2026-12-01"]),
        (
            {"cadence": "hourly", "start": date(2026, 11, 2)},
            ["2026-11-02-13:00"],
            ["2026-11-02-13:30", "2026-11-02"],
        ),
    ],
)
def test_the_keys_that_partitions_have(
    partitions: dict[str, Any], known: list[str], unknown: list[str]
) -> None:
    """A key is one of those declared, or begins a partition of the cadence."""
    declared = Partitions(**partitions)
    assert [key for key in known + unknown if declared.has(key)] == known
    assert known[0] in declared.described or declared.cadence in ("weekly", "monthly", "hourly")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type: t\nmodel: a\nmodel: b\n", [":3: ", "'model'", "line 2"]),
        ("type: t\nattributes:\n  a: {x: 1,\n    'x': 2}\n", [":4: ", "'x'", "line 3"]),
        ("type: t\nattributes:\n  partitions: {start: 2026-13-01}\n", [":3: ", "2026-13-01"]),
        ("type: t\nfoo: \x07\n", [":2: ", "\\x07"]),
        ("foo: " + "[" * 2000 + "]" * 2000, ["nested too deeply"]),
        ("attribute:\n  model: a\n", [":1: ", "attribute: unknown", "did you mean attributes?"]),
        ("attributes: {}\nfoo: 1\n", [":2: ", "foo: unknown field", "type, attributes"]),
        *(
            (f"attributes:\n  model: a\n  {key}: x\n", [":3: ", "Keys should be strings"])
            for key in ("1", "~", "yes")
        ),
    ],
)
def test_yaml_that_would_be_misread(defs: Path, text: str, said: list[str]) -> None:
    """What YAML or Dagster would take in silence, or refuse without a line, is told with it."""
    with pytest.raises(DeclarationError) as caught:
        Job.load(write(defs, text))
    assert_told(caught.value, defs, *said)


def test_merged_mappings_may_give_a_key_again(deployment: Deployment) -> None:
    """A key beside `<<` replaces the merged one, as YAML has it."""
    file = deployment.root / "merged.yaml"
    file.write_text("base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\nhis: *base\n")
    base = {"a": 1, "b": 2}
    assert read_yaml(file) == {"base": base, "mine": {"a": 1, "b": 3}, "his": base}


@pytest.mark.parametrize("content", [b"type: caf\xe9\n", None], ids=["latin-1", "folder"])
def test_a_declaration_that_cannot_be_read(
    declare: Declare, deployment: Deployment, content: bytes | None
) -> None:
    """It is named, though another job is asked for: Dagster loads all."""
    declare("job", job(source=FILES))
    file = deployment.root / "assets" / "deep" / "other" / "defs.yaml"
    file.parent.mkdir(parents=True)
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(DeclarationError) as caught:
        deployment.job("job")
    assert_told(caught.value, f"{file} cannot be read")


@pytest.mark.parametrize(("prompt", "said"), [("a\0b", "null"), ("x" * 300, "too long")])
def test_a_prompt_file_with_an_impossible_name(declare: Declare, prompt: str, said: str) -> None:
    """It is told as any other that cannot be read."""
    error = refused(declare, job(prompt=prompt))
    assert_told(error, "The prompt file", "cannot be read", said)
    assert "prompt:" in error.remedy
