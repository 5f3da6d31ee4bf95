"""The filters that cut what a prompt takes of a row: what stays, and what is told of it."""

from pathlib import Path

import polars as pl
import pytest
from support import Declare
from support_table import contents, drain, over_table, store

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.prefix.examine.check import check_source
from acdc_dagster.prefix.tokens.cutter import TokenCutter
from acdc_dagster.prefix.tokens.tokenizer import ModelTokenizer
from acdc_dagster.requests.prompts.prompt import Prompt
from acdc_dagster.requests.stage import source_of
from acdc_dagster.requests.tables.table import TableSource

PATH = Path("assets/job/prompt.md")
ROWS = pl.DataFrame(
    {
        "id": ["a", "b", "c", "d"],
        "title": ["one two three", "漢字かな👍🏽", None, "x"],
        "n": [1234567, 12, 1, 1],
    }
)


@pytest.fixture
def cutter(model_path: Path) -> TokenCutter:
    return TokenCutter(lambda: ModelTokenizer(model_path))


def source(
    deployment: Deployment, declare: Declare, prompt: str, cutter: TokenCutter
) -> TableSource:
    """The rows above as a source, with this prompt."""
    job = over_table(declare, prompt=prompt)
    store(deployment.root / "items", ROWS)
    opened = source_of(job, deployment, "all", cutter)
    assert isinstance(opened, TableSource)
    return opened


# The second way to write a prompt keeps it from being made of whole columns.
@pytest.mark.parametrize("end", ["", "{% if true %}{% endif %}"], ids=["columns", "rows"])
@pytest.mark.parametrize(
    ("prompt", "asked", "told"),
    [
        (
            "{{ title | truncate_chars(5) }}",
            {"a": "one t", "b": "漢字かな👍", "d": "x"},
            ["2 rows were cut to 5 characters in `title`."],
        ),
        (
            '{{ title | default("nothing") | truncate_chars(4) }}',
            {"a": "one", "b": "漢字かな", "c": "noth", "d": "x"},
            ["3 rows were cut to 4 characters in `title`."],
        ),
        (
            '{{ title | truncate_chars(4) | default("nothing") }}',
            {"a": "one", "b": "漢字かな", "c": "nothing", "d": "x"},
            ["2 rows were cut to 4 characters in `title`."],
        ),
        (
            '{{ n | truncate_chars(2) }} {{ title | d("") }}',
            {"a": "12 one two three", "b": "12 漢字かな👍🏽", "c": "1", "d": "1 x"},
            ["1 row was cut to 2 characters in `n`."],
        ),
        (
            '{{ title | d("") | truncate_chars(9) }}{{ title|d("")|truncate_chars(9) }}{{ id }}',
            {"a": "one two tone two ta", "b": "漢字かな👍🏽漢字かな👍🏽b", "c": "c", "d": "xxd"},
            ["1 row was cut to 9 characters in `title`."],
        ),
        ("{{ id | truncate_chars(1000) }}", {name: name for name in "abcd"}, []),
        (
            "{{ title | truncate_tokens(2) }}",
            {"a": "one two", "b": "", "d": "x"},
            ["2 rows were cut to 2 tokens in `title`."],
        ),
    ],
)
def test_the_beginning_stays_and_the_rows_are_counted(
    deployment: Deployment,
    declare: Declare,
    cutter: TokenCutter,
    prompt: str,
    asked: dict[str, str],
    told: list[str],
    end: str,
) -> None:
    """A row counts once for each cut that shortened it; a row that is rejected does not count."""
    opened = source(deployment, declare, prompt + end, cutter)
    for _ in range(2):  # a source may be read again
        taken = drain(opened)
        assert contents(taken) == asked
        assert opened.warnings == told
    assert len(taken.rejections) == 4 - len(asked)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("x | truncate_chars", "takes one number"),
        ("x | truncate_chars(0)", "takes one number"),
        ("x | truncate_chars(-1)", "takes one number"),
        ("x | truncate_chars(99999999999999999999999)", "from 1 to 2147483647"),
        ("x | truncate_tokens(true)", "takes one number"),
        ("x | truncate_tokens('5')", "takes one number"),
        ("x | truncate_tokens(n)", "takes one number"),
        ("x | truncate_tokens(5, 6)", "takes one number"),
        ("x | truncate_tokens(most=5)", "takes one number"),
        ("x | truncate_tokens(*[5])", "takes one number"),
        ("'text' | truncate_tokens(5)", "must stand behind a column"),
        ("x }}{% filter truncate_chars(5) %}text{% endfilter %}{{ x", "must stand behind a column"),
    ],
)
def test_a_cut_that_is_written_wrongly_is_told_with_its_line(expression: str, said: str) -> None:
    """Before anything runs."""
    with pytest.raises(DeclarationError, match=said) as caught:
        Prompt.compile(f"<!-- system -->\nA\n\n<!-- user -->\nfine\n{{{{ {expression} }}}}", PATH)
    assert caught.value.problem.startswith(f"{PATH}:6:")


def test_without_a_tokenizer_no_row_is_rejected_for_it(
    deployment: Deployment, declare: Declare
) -> None:
    """It is no fault of the rows."""
    job = over_table(declare, prompt="{{ title | truncate_tokens(2) }}")
    store(deployment.root / "items", ROWS)
    with pytest.raises(ModelError, match="no tokenizer"):
        drain(source_of(job, deployment, "all"))


def test_a_check_cuts_with_the_tokenizer_of_the_job(
    deployment: Deployment,
    declare: Declare,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`acdc check JOB` examines the prompts that a run would have."""
    prompt = "{{ title | default('none') | truncate_tokens(2) }}"
    over_table(declare, "items.parquet", prompt)
    store(deployment.root / "items.parquet", ROWS)
    monkeypatch.setenv("ACDC_DEPLOYMENT", str(deployment.root))
    cut = check_source("items", None, None, None, kv_tokens=10_000)
    assert "2 rows were cut to 2 tokens in `title`." in cut.warnings
    over_table(declare, "items.parquet", "{{ title | default('none') }}")
    uncut = check_source("items", None, None, None, kv_tokens=10_000)
    assert 0 < cut.lengths.total < uncut.lengths.total
