"""A LoRA adapter by name: found, part of what a request is, and run by the real engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from support import MODEL
from vllm_client import Client, started

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import DeclarationError, ModelError
from acdc_dagster.inference.engines.vllm_adapter import adapter_arguments
from acdc_dagster.prefix.identity import hash_head

RANK = 4


@pytest.fixture
def adapter(tmp_path: Path, model_path: Path) -> Path:
    """An adapter to the sample model that changes each layer's queries a lot."""
    return made_adapter(tmp_path / "adapter", model_path)


def made_adapter(folder: Path, model_path: Path, seed: int = 0) -> Path:
    config = json.loads((model_path / "config.json").read_text())
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    chosen = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = chosen.normal(size=(RANK, width)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = chosen.normal(size=(width, RANK)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "r": RANK,
                "lora_alpha": RANK,
                "target_modules": ["q_proj"],
                "bias": "none",
            }
        )
    )
    return folder


def with_loras(deployment: Deployment, loras: dict[str, str]) -> Deployment:
    path = deployment.root / "resources" / "local.yaml"
    environment = yaml.safe_load(path.read_text())
    environment["models"][MODEL]["loras"] = loras
    path.write_text(yaml.safe_dump(environment))
    return Deployment.load(deployment.root, "local")


def test_an_adapter_is_a_model_of_its_own_name(deployment: Deployment, adapter: Path) -> None:
    """With the base model's folder, and a revision that its weights are part of."""
    deployment = with_loras(deployment, {"tagger": "adapter", "other": f"{adapter}"})
    base, tagger = deployment.model(MODEL), deployment.model("tagger")
    assert (tagger.path, tagger.context_length) == (base.path, base.context_length)
    assert (base.adapter, tagger.name) == (None, "tagger")
    heads = {hash_head(deployment.model(name), "{}") for name in (MODEL, "tagger", "other")}
    assert len(heads) == 3
    before = deployment.model("other").revision
    made_adapter(adapter.parent / "next", base.path, seed=1)
    (adapter.parent / "next" / "adapter_model.safetensors").replace(
        adapter / "adapter_model.safetensors"
    )
    assert deployment.model("other").revision != before


def test_a_name_or_folder_that_is_wrong_is_told(deployment: Deployment, adapter: Path) -> None:
    """What is missing where, and what else there is."""
    (adapter / "adapter_model.safetensors").unlink()
    deployment = with_loras(deployment, {"tagger": f"{adapter}"})
    with pytest.raises(ModelError, match=r"'tagger' has no adapter_model\.safetensors"):
        deployment.model("tagger")
    with pytest.raises(ModelError) as unknown:
        deployment.model("tager")
    assert "tagger" in unknown.value.remedy
    with pytest.raises(DeclarationError, match=f"one model or adapter: {MODEL}"):
        with_loras(deployment, {MODEL: f"{adapter}"})


def test_an_adapter_runs_with_the_next_rank_that_vllm_has(adapter: Path) -> None:
    """4 as 8; without an adapter nothing is set, and a rank beyond the last is refused."""
    assert adapter_arguments(None) == {}
    assert adapter_arguments(f"{adapter}")["max_lora_rank"] == 8
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 1000}))
    with pytest.raises(ValueError, match="rank 1000"):
        adapter_arguments(f"{adapter}")


@pytest.fixture
def client(adapter: Path, model_path: Path) -> Iterator[Client]:
    """Asks an engine with the adapter."""
    engine = started(model_path, adapter_path=f"{adapter}")
    yield Client(engine, model_path)
    engine.close()


@pytest.mark.engine
def test_the_adapter_answers_as_the_merged_weights_do(
    client: Client, adapter: Path, model_path: Path
) -> None:
    """Greedy tokens of the same model with B x A added to its weights, by transformers."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    messages = [{"role": "user", "content": "Name three fruits."}]
    answer = client.ask(messages=messages, max_tokens=6)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = torch.tensor([client.ids("/v1/chat/completions", {"model": "m", "messages": messages})])

    def greedy() -> str:
        made = model.generate(ids, max_new_tokens=6, do_sample=False)
        return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)

    plain = greedy()
    weights = load_file(adapter / "adapter_model.safetensors")
    for number, layer in enumerate(model.model.layers):
        name = f"base_model.model.model.layers.{number}.self_attn.q_proj"
        change = weights[f"{name}.lora_B.weight"] @ weights[f"{name}.lora_A.weight"]
        layer.self_attn.q_proj.weight.data += change
    assert answer.text == greedy()
    assert answer.text != plain
