"""Micro models, built on the spot: real transformers folders, small enough for a test of milliseconds."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forked import FORKING
from micro import VOCABULARY, save_micro
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from coevolve.compute import backend
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import PolicySpec
from coevolve.runtime import placement, pool


def _set_one_thread() -> None:
    torch.set_num_threads(1)
    placement._threads = placement._Threads()


_set_one_thread()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A test, and what is made for its module, begin with one thread of PyTorch, whatever those before asked for."""
    _set_one_thread()
    yield
    _set_one_thread()


@pytest.fixture(scope="session", autouse=True)
def a_home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key that signs runs is one of these tests, not the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    os.environ.pop("XDG_STATE_HOME")
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session")
def micro_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a Llama (grouped-query attention, tied to no one) with 256 positions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return save_micro(LlamaForCausalLM(config), tmp_path_factory.mktemp("micro_llama"))


@pytest.fixture(scope="session")
def micro_gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a GPT-2 (learned positions, tied embeddings, dropout in its config) with 128 positions."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=None,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return save_micro(GPT2LMHeadModel(config), tmp_path_factory.mktemp("micro_gpt2"))


@pytest.fixture
def build_policy(micro_model: str) -> Callable[..., LocalLearner]:
    """build_policy(**PolicySpec settings, reference=, critic=, steps=) -> one policy named "a"."""

    def one(
        model: str = micro_model, reference: bool = False, critic: bool = False, steps: int = 10, **settings: Any
    ) -> LocalLearner:
        specs = {"a": PolicySpec(model, **settings)}
        return build_policies(specs, reference=reference, critic=critic, steps=steps, seed=0)["a"]

    return one


@pytest.fixture(scope="session", autouse=True)
def quick_pools() -> Iterator[None]:
    """Worker processes of pools are forked from one that has imported everything, where they else import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.multiprocessing, "get_context", lambda method: FORKING)
        yield


@pytest.fixture(params=["cpu", "torch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test twice: with the backend of compiled loops, and with that of PyTorch, as where numba is missing."""
    if request.param == "cpu":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(backend, "_why_not_cpu", lambda *_: "a test without")
    return str(request.param)
