"""Vectors in place of text: an engine that pools what the model makes of a prompt."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vllm_client import Client, started

from acdc_dagster.inference.engines.protocol import RequestRefused
from acdc_dagster.requests.body import EMBEDDINGS

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(model_path: Path) -> Iterator[Client]:
    """The sample model as an embedding model."""
    engine = started(model_path, runner="pooling")
    yield Client(engine, model_path)
    engine.close()


def test_a_vector_is_that_of_the_models_last_token(client: Client, model_path: Path) -> None:
    """What `transformers` gives for the same text, brought to length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    text = "A plum is a fruit."
    answer = client.ask(EMBEDDINGS, input=text)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModel.from_pretrained(model_path, dtype=torch.float32)
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    expected = torch.nn.functional.normalize(states[-1], dim=0).numpy()
    width = json.loads((model_path / "config.json").read_text())["hidden_size"]
    assert np.shape(answer.embedding) == (width,)
    np.testing.assert_allclose(answer.embedding or [], expected, atol=1e-4)
    assert (answer.text, answer.finish_reason, answer.completion_tokens) == (None, "stop", 0)
    assert answer.prompt_tokens == len(tokenizer(text)["input_ids"])


def test_dimensions_that_a_model_does_not_have_are_refused(client: Client) -> None:
    """Only one that was trained so gives shorter vectors; the others are unharmed."""
    with pytest.raises(RequestRefused, match="dimensions"):
        client.ask(EMBEDDINGS, input="A plum", dimensions=8)
    assert client.ask(EMBEDDINGS, input="A plum").embedding
