"""Tokenizers that take each digit by itself, against the reference library."""

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from acdc_dagster.prefix.tokens.digits import DigitsApart, without_digit_step
from benchmarks.bench import MODEL

fastokens = pytest.importorskip("fastokens")

FILE = MODEL / "tokenizer.json"


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def digit_texts() -> list[str]:
    """Texts in which digits of all kinds meet blanks, words, marks and special tokens."""
    chosen = random.Random(5)
    atoms = [*"0123456789", "12", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u2003", "\x1c", "\r\n"]
    atoms += ["²", "½", "Ⅷ", "٣", "१२", "①", "一", "a", "Word", " the", "é", "'s", "'", "-", "🙂"]
    atoms += ["<|im_start|>", "<|im_end|>"]
    return ["".join(chosen.choices(atoms, k=chosen.randint(0, 25))) for _ in range(3000)]


def test_ids_are_those_of_the_reference(description: dict[str, Any]) -> None:
    """Of texts with digits anywhere, and without any."""
    simpler = without_digit_step(description)
    assert simpler is not None
    fast = DigitsApart(fastokens.Tokenizer.from_json_str(json.dumps(simpler)))
    for texts in (digit_texts(), ["no digit", "", "the year 2026"]):
        ids, offsets = fast.encode_batch_flat(texts, add_special_tokens=False)
        starts = np.frombuffer(offsets, dtype="<u8").tolist()
        found = np.frombuffer(ids, dtype="<u4").tolist()
        wanted = Tokenizer.from_file(str(FILE)).encode_batch(texts, add_special_tokens=False)
        assert len(starts) == len(texts) + 1
        for at, encoding in enumerate(wanted):
            assert found[starts[at] : starts[at + 1]] == encoding.ids, repr(texts[at])


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made["model"]["vocab"].update({"Ġ1": 10**6}),
        lambda made: made["added_tokens"].append({"id": 10**6, "content": "<|1|>"}),
        lambda made: made.update(normalizer={"type": "NFC"}),
        lambda made: made["pre_tokenizer"]["pretokenizers"][0].update(individual_digits=False),
    ],
)
def test_a_tokenizer_that_needs_the_step_keeps_it(description: dict[str, Any], change: Any) -> None:
    """Where digits are joined to something, or texts change before they are cut."""
    made = copy.deepcopy(description)
    change(made)
    assert without_digit_step(made) is None
