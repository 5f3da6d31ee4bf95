"""The GPUs that a plan can be made for."""

from pathlib import Path

import pytest

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError
from acdc_dagster.gpus import known_gpus, parse_pool

KNOWN = known_gpus({})

# FLOP a byte at which a product of 16-bit matrices turns from memory to compute bound.
RIDGES = {
    "H20": 37,
    "H100": 295,
    "H100-PCIe": 378,  # (1513 / 2) TFLOP/s over 2 TB/s
    "H200": 206,
    "A100-80GB": 153,
    "A100-40GB": 201,  # (624 / 2) over 1.555
    "L4": 403,
    "L40S": 419,
    "MI300X": 247,  # 1307.4 over 5.3; with sparsity it is 2614.9
}


@pytest.mark.parametrize(("name", "ridge"), sorted(RIDGES.items()))
def test_rates_are_dense(name: str, ridge: int) -> None:
    """Rates with sparsity, twice as high, would double the ridge."""
    gpu = KNOWN[name]
    assert gpu.flops(fp8=False) / gpu.bandwidth == pytest.approx(ridge, rel=0.01)


def test_eight_bits_are_at_most_twice_as_fast() -> None:
    """And no faster where the GPU has none."""
    for gpu in KNOWN.values():
        ratio = gpu.flops(fp8=True) / gpu.flops(fp8=False)
        assert ratio == pytest.approx(2 if gpu.fp8_tflops else 1, rel=0.02)
    assert KNOWN["A100-80GB"].fp8_tflops is None


def test_an_engines_name_of_a_device_means_one_gpu() -> None:
    """Else a plan would learn from the runs of another."""
    names = [device for gpu in KNOWN.values() for device in gpu.devices]
    assert len(names) == len(set(names))
    assert all(gpu.devices for gpu in KNOWN.values())


def test_a_pool_is_a_name_and_a_count() -> None:
    """Any case; one GPU if no count is given."""
    assert str(parse_pool("h100:16", KNOWN)) == "H100:16"
    assert parse_pool("A100-80gb", KNOWN).count == 1


@pytest.mark.parametrize(
    ("text", "told"), [("H1000:8", "Did you mean H100"), ("H100:0", "'0'"), ("H100:x", "'x'")]
)
def test_an_unknown_pool_is_told(text: str, told: str) -> None:
    """With the near name, or what is wrong with the count."""
    with pytest.raises(DeclarationError, match=told):
        parse_pool(text, KNOWN)


def test_an_environment_adds_gpus_and_prices(tmp_path: Path) -> None:
    """Without code; a wrong field names its line."""
    resources = tmp_path / "resources"
    resources.mkdir()
    shape = "{bf16_tflops: 503, memory_gb: 96, bandwidth_tb_s: 4.0, link_gb_s: 32, node_gb_s: 25"
    text = f"tables: t\nmodels: {{}}\ngpus:\n  RTX-6000:\n    {shape}, price_hour: 1.5}}\n"
    (resources / "local.yaml").write_text(text)
    own = Deployment.load(tmp_path, "local").environment.gpus
    assert parse_pool("rtx-6000:2", known_gpus(own)).gpu.price_hour == 1.5
    (resources / "local.yaml").write_text(text.replace("memory_gb", "memory"))
    with pytest.raises(DeclarationError, match=r"local.yaml:5: gpus.RTX-6000.memory: .*memory_gb"):
        Deployment.load(tmp_path, "local")
