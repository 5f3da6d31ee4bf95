"""Stage 2: the memory that it may sort in."""

import pytest

from acdc_dagster.errors import DeclarationError
from acdc_dagster.prefix.stage import sorting_memory


@pytest.mark.parametrize("given", ["x", "nan", "inf", "-1", "0", "4 GiB"])
def test_a_wrong_memory_to_sort_in_is_told(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """With what may be given instead."""
    monkeypatch.setenv("ACDC_SORT_MEMORY_GIB", given)
    with pytest.raises(DeclarationError) as caught:
        sorting_memory()
    assert repr(given) in caught.value.problem
    assert "4 or 0.5" in caught.value.remedy


def test_the_memory_to_sort_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As given, else some of what the machine has."""
    monkeypatch.setenv("ACDC_SORT_MEMORY_GIB", "0.5")
    assert sorting_memory() == 2**29
    monkeypatch.delenv("ACDC_SORT_MEMORY_GIB")
    assert sorting_memory() > 0
