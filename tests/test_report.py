"""`acdc check`: what a request file holds and what its order is worth."""

import json
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import MODEL, Declare, request_line
from tokenizers import Tokenizer

from acdc_dagster.cli import main
from acdc_dagster.deployment import Deployment

# What the sample model's chat template puts before messages without a system message.
PREAMBLE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)
STEM = "Sort this support ticket into billing, shipping, returns or other. " * 8


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is started in an empty folder, which is the deployment too."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(folder))
    monkeypatch.delenv("ACDC_ENV", raising=False)


@pytest.fixture
def here(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's deployment, which declares the sample model, is the one that is used."""
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))


def check(file: Path, *options: object) -> Result:
    """The command over a file."""
    return CliRunner().invoke(main, ["check", str(file), *map(str, options)])


def report(folder: Path, lines: Iterable[str], *options: object) -> dict[str, Any]:
    """The JSON report over a file with these lines, which a job could run."""
    file = folder / "requests.jsonl"
    file.write_text("".join(line + "\n" for line in lines))
    result = check(file, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def tokens(model_path: Path, content: str) -> list[int]:
    """The prompt of one user message, by the tokenizers library alone."""
    prompt = f"{PREAMBLE}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    return _tokenizer(model_path).encode(prompt, add_special_tokens=False).ids


@cache
def _tokenizer(model_path: Path) -> Any:
    return Tokenizer.from_file(str(model_path / "tokenizer.json"))


def reused(prompts: Iterable[list[int]], block_size: int) -> int:
    """Tokens in whole blocks that an earlier prompt had with all before them; never the last."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for ids in prompts:
        for end in range(block_size, len(ids), block_size):
            if tuple(ids[:end]) not in seen:
                break
            hits += block_size
        seen |= {tuple(ids[:end]) for end in range(block_size, len(ids) + 1, block_size)}
    return hits


@pytest.mark.usefixtures("here")
def test_the_report_has_the_promised_fields(tmp_path: Path, model_path: Path) -> None:
    """Rows, valid and rejected add up; every field is there under its name, and no other."""
    long = "word " * 3000
    found = report(
        tmp_path,
        [
            request_line("a", "Hello"),
            "",
            "no JSON",
            request_line("long", long),
            request_line("b", "Hello there"),
            request_line(7),
            request_line("same as a", "Hello"),
        ],
    )
    assert list(found) == [
        "rows",
        "valid",
        "rejected",
        "duplicates",
        "prompt_tokens",
        "sharing",
        "hit_rate",
        "groups",
        "advice",
        "warnings",
    ]
    rates = ["file_order", "random_order", "prefix_order", "bound"]
    assert list(found["hit_rate"]) == ["block_size", "kv_tokens", *rates]
    assert (found["rows"], found["valid"], found["duplicates"]) == (6, 3, 1)
    assert [(r["line"], r["code"]) for r in found["rejected"]] == [
        (3, "invalid_json_line"),
        (4, "context_length_exceeded"),
        (6, "invalid_custom_id"),
    ]
    assert f"{len(tokens(model_path, long))} tokens" in found["rejected"][1]["message"]
    assert "2048" in found["rejected"][1]["message"]
    assert found["warnings"] == []


def test_prompt_tokens_are_those_of_the_tokenizer(tmp_path: Path, model_path: Path) -> None:
    """The total equals an independent count, with a model folder and with its tokenizer alone."""
    contents = ["Hello", "Grüße, 漢字 😀\n\n  x = 1234567", STEM, "<|im_end|>", "", "Hello"]
    lines = [request_line(str(number), content) for number, content in enumerate(contents)]
    expected = sum(len(tokens(model_path, content)) for content in contents)
    for tokenizer in (model_path, model_path / "tokenizer.json"):
        found = report(tmp_path, lines, "--tokenizer", tokenizer)
        assert (found["prompt_tokens"]["total"], found["warnings"]) == (expected, [])


@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_hit_rates_are_those_of_the_tokens(
    tmp_path: Path, model_path: Path, block_size: int
) -> None:
    """With room for all, they equal a count over sets of prefixes; so does the sharing."""
    contents = [f"{STEM[: 60 * (n % 5)]} Ticket {n % 7} of the {n % 3} kind" for n in range(40)]
    lines = [request_line(str(number), content) for number, content in enumerate(contents)]
    found = report(tmp_path, lines, "--tokenizer", model_path, "--block-size", block_size)
    prompts = [tokens(model_path, content) for content in contents]
    total = sum(map(len, prompts))
    nodes = {tuple(ids[:end]) for ids in prompts for end in range(1, len(ids) + 1)}
    assert found["sharing"] == pytest.approx(1 - len(nodes) / total)
    in_order = reused(sorted(prompts), block_size) / total
    assert in_order > 0
    rates = found["hit_rate"]
    assert rates["file_order"] == pytest.approx(reused(prompts, block_size) / total)
    assert rates["prefix_order"] == pytest.approx(in_order)
    assert rates["bound"] == pytest.approx(in_order)


def test_a_small_cache_shows_what_the_order_is_worth(tmp_path: Path, model_path: Path) -> None:
    """Where groups come mixed and the cache is small, only prefix order comes near the bound."""
    lines = [request_line(str(n), f"Team {n % 10}. {STEM} Ticket {n}") for n in range(60)]
    rates = report(tmp_path, lines, "--tokenizer", model_path, "--kv-tokens", 300)["hit_rate"]
    assert rates["file_order"] < rates["prefix_order"] <= rates["bound"]
    assert rates["prefix_order"] > 0.7


def test_it_is_told_why_no_order_helps(tmp_path: Path, model_path: Path) -> None:
    """Less than a block in common is another reason than nothing in common."""
    short = [request_line(str(n), f"{n} is what I ask about") for n in range(20)]
    found = report(tmp_path, short, "--tokenizer", model_path, "--block-size", 64)
    assert found["sharing"] > 0.5
    assert found["hit_rate"]["bound"] == 0
    assert "shorter than a KV block of 64 tokens" in " ".join(found["advice"])
    assert "next to nothing" not in " ".join(found["advice"])

    def asked(number: int) -> str:
        system = {"role": "system", "content": f"{number} " + "word " * 1000}
        return request_line(str(number), messages=[system, {"role": "user", "content": "Hi"}])

    found = report(tmp_path, map(asked, range(9)), "--tokenizer", model_path)
    assert found["sharing"] < 0.005
    assert "next to nothing" in " ".join(found["advice"])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("ids", "duplicates"), [("abab", 3), ("aaab", 3), ("abcd", 3), ("a", 0)])
def test_duplicates_are_repeated_requests(tmp_path: Path, ids: str, duplicates: int) -> None:
    """A request that is asked again is a duplicate, under its own id or another."""
    found = report(tmp_path, map(request_line, ids))
    assert (found["rows"], found["valid"]) == (len(ids), len(ids))
    assert found["duplicates"] == duplicates


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("temperatures", "warned"), [([0, 0, 0], False), ([0, 1, 1], True), ([0, 0, 1], False)]
)
def test_repeated_samples_are_explained(
    tmp_path: Path, temperatures: list[float], warned: bool
) -> None:
    """A warning says that samples are computed each, where a sampled request is repeated."""
    contents = ["Once" if t == 1 and temperatures.count(1) == 1 else "Hello" for t in temperatures]
    lines = [
        request_line(str(n), content, temperature=temperature)
        for n, (content, temperature) in enumerate(zip(contents, temperatures, strict=True))
    ]
    warnings = report(tmp_path, lines)["warnings"]
    assert any("sampled" in warning for warning in warnings) is warned


def test_without_a_tokenizer_tokens_are_estimated(tmp_path: Path, model_path: Path) -> None:
    """The report warns and names the model; shares of tokens come near those of the tokenizer."""
    lines = [request_line(str(n), f"{STEM} Ticket {n} says: {n * 'x'}") for n in range(30)]
    guess, exact = report(tmp_path, lines), report(tmp_path, lines, "--tokenizer", model_path)
    (warning,) = guess["warnings"]
    assert MODEL in warning
    assert "estimated" in warning
    assert "--tokenizer" in warning
    assert guess["sharing"] == pytest.approx(exact["sharing"], abs=0.05)
    assert guess["prompt_tokens"]["total"] == pytest.approx(
        exact["prompt_tokens"]["total"], rel=0.3
    )


@pytest.mark.usefixtures("here")
def test_the_only_declared_model_stands_in(tmp_path: Path, model_path: Path) -> None:
    """For a model that is not declared, the deployment's only tokenizer counts, with a warning."""
    found = report(tmp_path, [request_line("a", "Hello", model="elsewhere")])
    assert found["prompt_tokens"]["total"] == len(tokens(model_path, "Hello"))
    (warning,) = found["warnings"]
    assert "'elsewhere'" in warning
    assert MODEL in warning


@pytest.mark.parametrize("tokenizer", [True, False])
def test_an_empty_file_can_run(tmp_path: Path, model_path: Path, tokenizer: bool) -> None:
    """It is reported as what it is, and no model is missed that nobody asked for."""
    found = report(tmp_path, [], *(("--tokenizer", model_path) if tokenizer else ()))
    assert (found["rows"], found["valid"], found["rejected"]) == (0, 0, [])
    assert [found["hit_rate"][name] for name in ("file_order", "prefix_order", "bound")] == [
        0,
        0,
        0,
    ]
    (warning,) = found["warnings"]
    assert "no rows" in warning


def test_a_file_without_valid_rows_cannot_run(tmp_path: Path) -> None:
    """Exit code 1, with the report all the same."""
    file = tmp_path / "bad.jsonl"
    file.write_text(f"null\n{request_line(5)}\n")
    result = check(file, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["rows"], found["valid"], len(found["rejected"])) == (2, 0, 2)


def test_the_report_for_a_person(tmp_path: Path, model_path: Path) -> None:
    """Without --json the findings are text: the counts, each rejected line, the verdict."""
    file = tmp_path / "requests.jsonl"
    file.write_text(f"{request_line('a')}\n" + "null\n" * 30)
    result = check(file, "--tokenizer", model_path)
    assert result.exit_code == 1
    for said in ("31 rows", "1 valid", "30 rejected", "line 2: invalid_json_line", "10 more"):
        assert said in result.stdout
    assert "max_rejected" in result.stdout.splitlines()[-1]
    file.write_text(f"{request_line('a')}\n" + "null\n" * 5)
    result = check(file, "--tokenizer", model_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "A job can run this."


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("missing.jsonl", (), "missing.jsonl"),
        ("", (), "cannot be read"),
        ("good.jsonl", ("--tokenizer", "no/such/tokenizer"), "no/such/tokenizer"),
        ("good.jsonl", ("--tokenizer", "broken.json"), "broken.json"),
    ],
    ids=["no file", "folder", "no tokenizer", "broken tokenizer"],
)
def test_faults_are_told_with_a_remedy(
    tmp_path: Path, name: str, options: tuple[str, ...], named: str
) -> None:
    """What cannot be read is named on standard error with a remedy, and nothing else is printed."""
    (tmp_path / "good.jsonl").write_text(request_line())
    Path("broken.json").write_text("{}")
    result = check(tmp_path / name, "--json", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert named in result.stderr
    assert "Remedy: " in result.stderr


@pytest.mark.parametrize("option", ["--block-size", "--kv-tokens"])
@pytest.mark.parametrize("value", [0, -1, "many"])
def test_sizes_are_positive_numbers(tmp_path: Path, option: str, value: object) -> None:
    """A size that is none is a fault of the command line, named by its option."""
    file = tmp_path / "requests.jsonl"
    file.write_text(request_line())
    result = check(file, option, value)
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.mark.usefixtures("here")
def test_a_file_of_another_format_is_examined_for_the_only_model(tmp_path: Path) -> None:
    """Its lines name no model of this deployment; by path or by URI, they count as a job's do."""
    line = {"key": "a", "request": {"contents": [{"parts": [{"text": "Hello"}]}]}}
    expected = report(tmp_path, [request_line("a")])
    found = report(tmp_path, [json.dumps(line)])
    assert found == expected
    assert found["valid"] == 1
    assert found["warnings"] == []
    uri = (tmp_path / "requests.jsonl").as_uri()
    assert json.loads(CliRunner().invoke(main, ["check", uri, "--json"]).stdout) == expected


def test_a_wrong_environment_is_told(tmp_path: Path, deployment: Deployment, here: None) -> None:
    """What a file is checked with comes from it, so it is not left out in silence."""
    file = tmp_path / "requests.jsonl"
    file.write_text(request_line())
    environment = deployment.root / "resources" / "local.yaml"
    environment.write_text("tabels: x\n" + environment.read_text())
    result = check(file)
    assert result.exit_code == 1
    assert f"{environment}:1: tabels: unknown field (did you mean tables?)" in result.stderr


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        ("tagg", (), "choose one of: tags"),
        ("x" * 300, (), "choose one of: tags"),
        ("tags", ("--partition", "zz"), "Give --partition with one of: a, b"),
        ("tags", (), "Give one with --partition"),
    ],
    ids=["no job", "long name", "no such partition", "no partition"],
)
def test_a_wrong_job_or_partition_names_the_right_ones(
    declare: Declare, here: None, what: str, options: tuple[str, ...], said: str
) -> None:
    """A mistyped job is told as such, and a partition has to be a declared one."""
    partitions = {"cadence": "static", "keys": ["a", "b"]}
    source = {"requests": "in/{partition}.jsonl"}
    declare("tags", {"source": source, "model": MODEL, "partitions": partitions})
    result = CliRunner().invoke(main, ["check", what, *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_an_output_that_takes_no_more_is_told(tmp_path: Path) -> None:
    """A full disk behind standard output is the user's to mend."""
    file = tmp_path / "requests.jsonl"
    file.write_text(request_line())
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "acdc_dagster.cli", "check", str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Standard output cannot be written: No space left")
    assert "Traceback" not in done.stderr
