"""What is loaded is what the files say: everything else is refused, and the tensor or file is named."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import struct
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import try_to_load_from_cache
from micro import VOCABULARY, character_tokenizer
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from coevolve.faults import ShortageError
from coevolve.learners.build import build_policies
from coevolve.learners.elsewhere import FrozenElsewhere
from coevolve.learners.sizes import weightless
from coevolve.models import load as models
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.rewards.classifier import Classifier

ONE = "model.safetensors"
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": False},
    "gpt2": {"n_positions": 64},
    "llama": {},
    "mistral": {"num_key_value_heads": 1, "head_dim": 8},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "gpt_neox": {},
}


def built(folder: Path, family: str, auto: Any = AutoModelForCausalLM, **settings: Any) -> Path:
    """A folder of a random model of this family, with a tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        **({"intermediate_size": 32} if family not in ("gpt2", "opt") else {}), bos_token_id=None, eos_token_id=1,
        pad_token_id=0, **(FAMILIES.get(family, {}) | settings),
    )  # fmt: skip
    auto.from_config(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return built(tmp_path / "llama", "llama")


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return built(tmp_path / "gpt2", "gpt2")


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any], file: str = ONE) -> Path:
    tensors = load_file(folder / file)
    how(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / file, {"format": "pt"})
    return folder


def rewrite(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def policies(folder: Path, **settings: Any) -> Any:
    return build_policies({"a": PolicySpec(str(folder), **settings)}, reference=False, critic=False, steps=1, seed=0)


def says(wanted: str) -> Any:
    return pytest.raises(ValueError, match=wanted)


# --- what is honest is loaded ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_folders_load(family: str, tmp_path: Path) -> None:
    folder = built(tmp_path / "own", family)
    own = models.load_causal_lm(str(folder)).state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        assert torch.equal(own[name], tensor)
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    assert models.load_causal_lm(str(tmp_path / "half")).dtype == torch.float32
    half.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    models.load_causal_lm(str(tmp_path / "shards"))


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "opt"])
def test_a_tied_head_may_be_left_out_or_there_and_the_trunk_alone_will_do(family: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(built(tmp_path / "own", family))
    model.base_model.save_pretrained(tmp_path / "trunk")
    found = models.load_causal_lm(str(tmp_path / "trunk"))
    assert torch.equal(found.get_output_embeddings().weight, model.get_input_embeddings().weight)

    def with_head(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = model.get_input_embeddings().weight.detach().clone()

    models.load_causal_lm(str(change(tmp_path / "own", with_head)))


def test_buffers_of_older_versions_are_no_fault(llama: Path, gpt2: Path) -> None:
    def buffers(tensors: dict[str, torch.Tensor]) -> None:
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-torch.inf)

    models.load_causal_lm(str(change(gpt2, buffers)))
    models.load_causal_lm(
        str(change(llama, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})))
    )


def test_every_end_that_a_generation_config_names_ends_a_turn(llama: Path) -> None:
    """As chat models name several; also of a policy whose weights are its engine's alone."""
    rewrite(llama / "generation_config.json", eos_token_id=[1, 7])
    assert policies(llama)["a"].eos == {1, 7}
    assert FrozenElsewhere("b", PolicySpec(str(llama), weights="frozen")).eos == {1, 7}


# --- weights ---------------------------------------------------------------------------------------------------------

NAME, EMBEDDING = "model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda t: t.pop(NAME), rf"no tensor {re.escape(NAME)};"),
        (lambda t: t.update(other=t.pop(NAME)), rf"no tensor {re.escape(NAME)}; unknown to it other;"),
        (lambda t: t.update({NAME: t[NAME][:, :-1]}), rf"{re.escape(NAME)} has the shape \[16, 31\], .* \[16, 32\]"),
        (lambda t: t.update({EMBEDDING: t[EMBEDDING][:-1]}), "embed_tokens.* has the shape"),
        (lambda t: t[NAME].view(-1)[7:8].fill_(torch.nan), rf"{ONE}: the tensor {re.escape(NAME)} holds NaN"),
        (lambda t: t[NAME].view(-1)[7:8].fill_(-torch.inf), rf"the tensor {re.escape(NAME)} holds NaN, infinite"),
        (lambda t: t.update({NAME: t[NAME].double() + 1e300}), rf"{re.escape(NAME)} holds .* too large numbers"),
        (lambda t: t.update({NAME: t[NAME].to(torch.int8)}), rf"{re.escape(NAME)} is int8, which is no weight"),
        (lambda t: t.update({NAME: t[NAME].to(torch.float8_e4m3fn)}), rf"{re.escape(NAME)} is float8_e4m3fn"),
        (lambda t: [one.zero_() for one in t.values()], rf"{ONE}: every number in it is 0"),
        (lambda t: t[EMBEDDING].zero_(), "every number of its input embedding is 0"),
        (lambda t: t.update({"v_head.summary.weight": torch.ones(1)}), r"unknown to it v_head\.summary\.weight;"),
        (lambda t: t.pop("lm_head.weight"), r"no tensor lm_head\.weight;"),
        (lambda t: t.clear(), r"no tensor lm_head\.weight, .* and 18 more"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_what_the_model_needs(how: Any, said: str, llama: Path) -> None:
    with says(rf"^model '{re.escape(str(llama))}': .*{said}"):
        policies(change(llama, how))


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (lambda b: b[:-8], "cannot be read"),
        (lambda b: b[:100], "cannot be read"),
        (lambda b: b"", "cannot be read"),
        (lambda b: bytes(len(b)), "cannot be read"),
        (lambda b: b[:8] + b"[" * (struct.unpack("<Q", b[:8])[0]) + b[8:], "cannot be read"),
        (lambda b: struct.pack("<Q", 1 << 62) + b[8:], "cannot be read"),
    ],
)
def test_files_that_are_cut_short_or_zeroed(contents: Any, said: str, llama: Path) -> None:
    (llama / ONE).write_bytes(contents((llama / ONE).read_bytes()))
    with says(rf"{re.escape(str(llama / ONE))} {said}.*copy it again"):
        models.load_causal_lm(str(llama))


def test_shards(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(llama).save_pretrained(folder, max_shard_size="4KB")
    index = folder / "model.safetensors.index.json"
    shard = sorted(folder.glob("*.safetensors"))[1]
    kept = shard.read_bytes()
    shard.unlink()
    with says(f"{re.escape(str(shard))} does not exist"):
        models.load_causal_lm(str(folder))
    shard.write_bytes(kept)
    for wrong, said in (
        ("[]", "is not an index"),
        ("{", "is not an index"),
        ('{"weight_map": {"a": "../x"}}', r"names '\.\./x'"),
        ('{"weight_map": {"a": 3}}', "names 3"),
    ):
        index.write_text(wrong)
        with says(said):
            models.load_causal_lm(str(folder))


@pytest.mark.parametrize("other", ["gpt2", "gpt_neox", "opt"])
def test_a_config_of_another_family(other: str, llama: Path, tmp_path: Path) -> None:
    shutil.copy2(built(tmp_path / "other", other) / "config.json", llama)
    with says(rf"do not fit its config\.json \({other}.*no tensor .* unknown to it "):
        models.load_causal_lm(str(llama))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 15),
        ("hidden_size", "x"),
        ("num_attention_heads", 0),
        ("model_type", "no-such"),
        ("vocab_size", -1),
        ("num_hidden_layers", None),
    ],
)
def test_a_config_that_makes_no_model(key: str, value: Any, llama: Path) -> None:
    rewrite(llama / "config.json", **{key: value})
    with says(rf"^model '{re.escape(str(llama))}'"):
        models.load_causal_lm(str(llama))


def test_a_family_whose_logits_are_more_than_an_output_layer_is_no_policy(tmp_path: Path) -> None:
    with says("changes its logits after the output layer"):
        policies(built(tmp_path / "granite", "granite", logits_scaling=3.0))


@pytest.mark.parametrize("text", ["null", "[]", "3", '"llama"', "", "{"])
def test_a_config_that_is_no_mapping(text: str, llama: Path) -> None:
    (llama / "config.json").write_text(text)
    with says(rf"^{re.escape(str(llama))}/config\.json: .*; want a JSON object"):
        models.load_causal_lm(str(llama))


def test_more_layers_than_there_are(llama: Path) -> None:
    rewrite(llama / "config.json", num_hidden_layers=3)
    with says(r"no tensor model\.layers\.2\.input_layernorm\.weight, .* and 6 more"):
        models.load_causal_lm(str(llama))


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "no-such"])
def test_what_is_quantised_already(method: str, llama: Path) -> None:
    rewrite(llama / "config.json", quantization_config={"quant_method": method, "bits": 4})
    with says(rf"is quantised already \({method}\); name the model that it was made of"):
        models.load_causal_lm(str(llama))


@pytest.mark.parametrize("settings", [{}, {"weights": "lora", "load_in_4bit": True}])
def test_four_bits_are_checked_alike(settings: dict[str, Any], llama: Path) -> None:
    if settings:
        pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    assert policies(llama, **settings)
    kept = (llama / ONE).read_bytes()
    for how, said in (
        (lambda t: t[NAME].view(-1)[:1].fill_(torch.nan), "holds NaN"),
        (lambda t: t.update({NAME: t[NAME][:, :8]}), "has the shape"),
        (lambda t: t.pop(NAME), "no tensor"),
    ):
        with says(f"{re.escape(NAME)}.*{said}|{said}.*{re.escape(NAME)}"):
            policies(change(llama, how), **settings)
        (llama / ONE).write_bytes(kept)


# --- what could run code ---------------------------------------------------------------------------------------------


def test_pickled_weights_are_not_read(llama: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    (llama / ONE).unlink()
    torch.save({"a": Evil()}, llama / "pytorch_model.bin")
    with says(r"no model\.safetensors, only pytorch_model\.bin; such files can run code"):
        models.load_causal_lm(str(llama))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "load", [models.load_causal_lm, models.load_classifier, models.load_tokenizer, models.load_config]
)
def test_python_of_a_model_is_neither_run_nor_asked_about(
    load: Any, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (llama / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Evil: pass\n")
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    rewrite(llama / "config.json", model_type="evil", auto_map=dict.fromkeys(names, "evil.Evil"))
    rewrite(
        llama / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    )
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("asked"))
    with says("Python of its own"):
        load(str(llama))
    assert not (tmp_path / "ran").exists()


def test_an_attention_that_would_be_fetched_is_refused(micro_model, tmp_path, monkeypatch):
    """Where flash_attn is not installed, transformers asks the hub for a kernel in its place."""
    folder = shutil.copytree(micro_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"attn_implementation": "flash_attention_2"}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("coevolve.models.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="asks for 'flash_attention_2', and flash_attn is not installed here; remove"):
        models.load_causal_lm(str(folder))


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("load", [models.load_causal_lm, models.load_classifier, models.load_config, weightless])
def test_a_kernel_that_a_model_names_is_not_fetched(
    load: Any, key: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = "transformers.modeling_utils.lazy_import_flash_attention"
    monkeypatch.setattr(fetch, lambda *asked, **how: pytest.fail("fetched"))
    rewrite(llama / "config.json", **{key: "some/kernel@main:attention"})
    with says(
        r"asks for code of the hub \(attn_implementation 'some/kernel@main:attention'\), which Coevolve never runs"
    ):
        load(str(llama))


def test_a_kernel_for_a_part_of_a_model(tmp_path: Path) -> None:
    config = AutoConfig.for_model("gemma3").to_dict() | {"attn_implementation": {"text_config": "some/kernel"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with says("asks for code of the hub"):
        models.load_config(str(tmp_path))


def test_an_adapter_is_no_model(llama: Path) -> None:
    pytest.importorskip("peft")
    (llama / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else", "peft_type": "LORA"}')
    with says("is an adapter; merge it"):
        models.load_causal_lm(str(llama))


# --- tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "said"), [("qwen2", "makes no tokens of any text"), ("llama", "the folder holds no tokenizer; copy")]
)
def test_no_tokenizer(family: str, said: str, tmp_path: Path) -> None:
    """Of some families transformers makes one up, of one token."""
    folder = built(tmp_path / family, family)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with says(said):
        policies(folder)


def test_a_tokenizer_that_is_cut_short(llama: Path) -> None:
    (llama / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes()[:200])
    with says(r"cannot be loaded \("):
        policies(llama)


def test_a_tokenizer_that_is_not_text(llama: Path) -> None:
    (llama / "tokenizer.json").write_bytes(b"\xfb" + (llama / "tokenizer.json").read_bytes()[1:])
    with says(r"cannot be loaded \(UnicodeDecodeError: one of its files is not UTF-8 text\)"):
        policies(llama)


def test_a_tokenizer_that_knows_special_tokens_only(llama: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers import models as kinds

    core = Tokenizer(kinds.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(llama)
    with says("its tokenizer makes no tokens of any text"):
        policies(llama)


def test_a_tokenizer_that_is_larger_than_the_embedding(llama: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(llama)
    with says(rf"ids up to {len(VOCABULARY)} \('more'\), its embedding has {len(VOCABULARY)} rows"):
        policies(llama)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_what_the_machine_lacks_is_no_fault_of_the_model(
    error: Exception, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*args: Any, **settings: Any) -> Any:
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lacking)
    with pytest.raises(ShortageError, match=r"^model '.*': (the disk is full|out of memory) \("):
        models.load_causal_lm(str(llama))


def test_packaged_models_load() -> None:
    for name in models.PACKAGED:
        models.check_vocabulary(models.load_tokenizer(name), models.load_causal_lm(name), name)


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
def test_a_device_that_is_not_here(device: str) -> None:
    if torch.get_device_module(device).is_available():
        pytest.skip("it is here")
    with says(f"^device '{device}': there is no such GPU here that torch can use; use device: cpu or auto$"):
        models.device_of(device)


def test_a_device_that_cannot_sum_as_sampling_does() -> None:
    with says("^device 'mps': Apple's GPUs have no float64, which sampling sums in; use device: cpu$"):
        models.device_of("mps")


@pytest.mark.parametrize(
    ("device", "count", "said"),
    [
        ("cuda:7", 2, "^device 'cuda:7': torch finds cuda:0 to cuda:1 here; use one that is there, cpu or auto$"),
        ("cuda:1", 1, "^device 'cuda:1': torch finds only cuda:0 here; use one that is there, cpu or auto$"),
        ("cuda:1", 2, None),
        ("cuda", 1, None),
    ],
)
def test_a_number_of_a_device_that_is_not_here(monkeypatch, device: str, count: int, said: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if said is None:
        assert models.device_of(device) == torch.device("cuda", 1 if ":" in device else 0)
        return
    with says(said):
        models.device_of(device)


# --- classifiers -----------------------------------------------------------------------------------------------------


def test_classifiers(tmp_path: Path) -> None:
    labels = {"id2label": {0: "NEGATIVE", 1: "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}}
    folder = built(tmp_path / "judge", "llama", AutoModelForSequenceClassification, **labels)
    assert len(Classifier(str(folder))(["abc", "d"])) == 2
    kept = shutil.copytree(folder, tmp_path / "kept")
    with says(r"no tensor score\.weight"):
        Classifier(str(change(folder, lambda t: t.pop("score.weight"))))
    with says(r"score\.weight has the shape \[3, 16\], .* wants \[2, 16\]"):
        Classifier(str(change(kept, lambda t: t.update({"score.weight": torch.ones(3, 16)}))))


def test_a_language_model_is_no_classifier(llama: Path) -> None:
    with says(r"no tensor score\.weight; unknown to it lm_head\.weight"):
        models.load_classifier(str(llama))


def test_the_pooler_that_a_classifier_has_no_use_for(tmp_path: Path) -> None:
    folder = built(tmp_path / "judge", "roberta", AutoModelForSequenceClassification, max_position_embeddings=64)
    change(folder, lambda t: t.update({"roberta.pooler.dense.weight": torch.ones(16, 16)}))
    models.load_classifier(str(folder))


# --- adapters, value heads, checkpoints ------------------------------------------------------------------------------

ADAPTER = "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda t: t.pop(min(t)), "no tensor base_model"),
        (lambda t: t.update(more=torch.ones(1)), "unknown more"),
        (lambda t: t.update({min(t): t[min(t)][:-1]}), "has the shape"),
        (lambda t: t[min(t)].fill_(torch.nan), "holds NaN"),
        (lambda t: t.update({min(t): t[min(t)].to(torch.int8)}), "is int8"),
        (lambda t: [tensor.zero_() for tensor in t.values()], "every number in it is 0"),
    ],
)
def test_adapters_that_are_not_of_the_policy(how: Any, said: str, llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = policies(llama, weights="lora")["a"]
    policy.save(tmp_path / "agent")
    policy.weights.load(tmp_path / "agent")
    with says(rf"{ADAPTER}.*{said}"):
        policy.weights.load(change(tmp_path / "agent", how, ADAPTER))


@pytest.mark.parametrize(("key", "value"), [("lora_alpha", 64), ("use_rslora", True), ("peft_type", "IA3"), ("r", 3)])
def test_adapters_that_are_computed_otherwise(key: str, value: Any, llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = policies(llama, weights="lora")["a"]
    policy.save(tmp_path)
    rewrite(tmp_path / "adapter_config.json", **{key: value})
    with says(rf"adapter_config\.json: {key} is {value!r} there"):
        policy.weights.load(tmp_path)


@pytest.mark.parametrize("targets", [["q_proj", "qproj"], ["layers"], ["input_layernorm"], ["q_proj", "embed_tokens"]])
def test_targets_that_take_no_adapter(targets: list[str], llama: Path) -> None:
    pytest.importorskip("peft")
    with says(r"^lora\.targets: .*linear layers are q_proj, k_proj, v_proj, o_proj, gate_proj, .*lm_head$"):
        policies(llama, weights="lora", lora=LoraSpec(targets=targets))


def with_critic(folder: Path) -> Any:
    spec = {"a": PolicySpec(str(folder))}
    return build_policies(spec, reference=False, critic=True, steps=1, seed=0)["a"]


def test_checkpoints_of_other_weights(llama: Path, tmp_path: Path) -> None:
    policy = with_critic(llama)
    policy.save(tmp_path / "agent")
    state = policy.training_state()
    policy.load(tmp_path / "agent", state)
    moments = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.ones(3))
    with says(r"is of other weights; delete"):
        policy.load(tmp_path / "agent", {"optimizer": state["optimizer"] | {"state": {0: moments}}})
    with says(r"cannot be read; delete"):
        policy.load(tmp_path / "agent", {})
    other = with_critic(built(tmp_path / "wide", "llama", num_key_value_heads=1))
    other.save(tmp_path / "other")
    with says(
        r"other: the tensor model\.layers\.0\.self_attn\.k_proj\.weight has the shape \[8, 16\], this policy wants"
    ):
        policy.load(tmp_path / "other", state)
    change(tmp_path / "agent", lambda t: t[NAME].view(-1)[:1].fill_(torch.nan))
    with says("holds NaN"):
        policy.load(tmp_path / "agent", state)
    change(tmp_path / "agent", lambda t: t.update(weight=torch.ones(1, 3)), "value_head.safetensors")
    with says(r"value_head\.safetensors: the tensor weight has the shape \[1, 3\]"):
        policy.load(tmp_path / "agent", state)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda one: one.pop("exp_avg_sq"), "cannot be read"),
        (lambda one: one.update(exp_avg_sq=torch.ones(3)), "is of other weights"),
        (lambda one: one.update(step=None), "cannot be read"),
    ],
)
def test_moments_that_are_not_whole_are_refused(how: Any, said: str, llama: Path, tmp_path: Path) -> None:
    """Before the next step meets them."""
    policy = with_critic(llama)
    policy.save(tmp_path)
    moments = {key: torch.zeros_like(policy.parameters[0]) for key in ("exp_avg", "exp_avg_sq")}
    state = policy.training_state()
    state["optimizer"]["state"] = {0: {**moments, "step": torch.tensor(1.0)}}
    policy.load(tmp_path, state)
    how(state["optimizer"]["state"][0])
    with says(f"its optimiser's state {said}; delete"):
        policy.load(tmp_path, state)


def test_a_checkpoint_that_is_refused_changes_no_weight(llama: Path, tmp_path: Path) -> None:
    policy = with_critic(llama)
    policy.save(tmp_path)
    state, before = policy.training_state(), [parameter.clone() for parameter in policy.parameters]
    change(tmp_path, lambda t: t[NAME].add_(1))
    with says("its optimiser's state cannot be read"):
        policy.load(tmp_path, {})
    change(tmp_path, lambda t: t.update(weight=torch.ones(1, 3)), "value_head.safetensors")
    with says("the tensor weight has the shape"):
        policy.load(tmp_path, state)
    assert all(map(torch.equal, before, policy.parameters))


# --- the hub's cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"eos_token_id": [1, ', "Expecting value at column 22; want a JSON object"),
        (b'[{"eos_token_id": 1}]', "a list; want a JSON object"),
        (b"[" * 5000, "nested too deeply"),
        ('{"eos_token_id": 1}'.encode("utf-32-be")[:-1], "want a JSON object"),
        ('{"eos_token_id": 1}'.encode("utf-16"), r"is not UTF-8 text \(line 1, byte 0x"),
        ('{"eos_token_id": 1}'.encode("utf-8-sig"), "begins with a byte order mark; save it as UTF-8 without one"),
        (b'{"eos_token_id": [1, "</s>"]}', r"eos_token_id is \[1, '</s>'\]; want a token's id or a list of ids"),
        (b'{"eos_token_id": true}', "eos_token_id is True"),
    ],
)
def test_a_broken_generation_config_is_not_taken_for_none(llama: Path, content: bytes, says: str) -> None:
    """Ends of turns that only it names would be lost without a word."""
    (llama / "generation_config.json").write_bytes(content)
    for load in (models.load_causal_lm, lambda name: models.load_generation(name, models.load_config(name))):
        with pytest.raises(ValueError, match=rf"generation_config.json.*{says}.*; mend that file, or copy it again"):
            load(str(llama))


def test_a_generation_config_that_transformers_cannot_read(llama: Path) -> None:
    (llama / "generation_config.json").write_text('{"eos_token_id": [1, 2], "watermarking_config": 3}')
    with pytest.raises(ValueError, match=r"generation_config.json cannot be read \('int' object .*; mend"):
        models.load_generation(str(llama), models.load_config(str(llama)))
    (llama / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_k": null}')
    found = models.load_generation(str(llama), models.load_config(str(llama)))
    assert found.eos_token_id == [1, 2]


def test_a_broken_generation_config_in_the_hubs_cache(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "try_to_load_from_cache", lambda name, file: str(llama / file))
    (llama / "generation_config.json").write_text("{")
    with says(r"^model 'some/one': .*generation_config\.json.*; mend that file, or copy it again"):
        models.load_generation("some/one", None)


@pytest.fixture
def cached(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with ``some/one``; returns the folder of the model in it."""
    folder = tmp_path / "hub" / "models--some--one" / "snapshots" / ("0" * 40)
    shutil.copytree(llama, folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("0" * 40)
    look = partial(try_to_load_from_cache, cache_dir=tmp_path / "hub")
    monkeypatch.setattr(models, "try_to_load_from_cache", look)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    return folder


@pytest.mark.parametrize(
    ("file", "loads"),
    [
        ("generation_config.json", [models.AutoModelForCausalLM, models.GenerationConfig]),
        ("chat_template.jinja", [models.AutoTokenizer]),
        ("tokenizer.json", [models.AutoTokenizer]),
    ],
)
def test_a_download_that_was_broken_off_is_gone_on_with(
    cached: Path, monkeypatch: pytest.MonkeyPatch, file: str, loads: list[type]
) -> None:
    """A file that the model may lack: without it ends of turns or the chat template would be lost without a word."""
    asked: list[str] = []
    here, rest = {"local_files_only": True}, {"revision": cached.name}
    monkeypatch.setattr(models, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(models, "_require_on_hub", asked.append)
    (cached / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (cached / "chat_template.jinja").write_text("{{ messages }}")
    models._can_be_asked.cache_clear()
    assert all(models._asking("some/one", auto) == here for auto in loads) and not asked
    (cached / file).unlink()
    assert all(models._asking("some/one", auto) == rest for auto in loads)  # and not of a newer commit
    assert asked == ["some/one"]
    models._can_be_asked.cache_clear()
    monkeypatch.setattr(models, "_require_on_hub", lambda name: models.load_config("/there/is/none"))
    with pytest.warns(UserWarning, match=rf"whether the model 'some/one' has a {file}, .* cannot be asked") as told:
        assert all(models._asking("some/one", auto) == here for auto in loads)
    assert len(told) == 1
    if file == "tokenizer.json":
        return
    missing = cached.parents[1] / ".no_exist" / cached.name / file  # huggingface_hub's note
    missing.parent.mkdir(parents=True)
    missing.touch()
    models._can_be_asked.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(models._asking("some/one", auto) == here for auto in loads)
    missing.unlink()
    monkeypatch.setattr(models, "HF_HUB_OFFLINE", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(models._asking("some/one", auto) == here for auto in loads)


def test_a_chat_template_may_be_in_the_tokenizers_config(cached: Path) -> None:
    config = json.loads((cached / "tokenizer_config.json").read_text())
    (cached / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages }}"}))
    assert models._asking("some/one", models.AutoTokenizer) == {"local_files_only": True}


def test_a_model_of_which_the_configuration_alone_was_downloaded(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for; one that is there whole is not."""
    asked: list[str] = []
    monkeypatch.setattr(models, "_require_on_hub", asked.append)
    for auto in (models.AutoConfig, models.AutoTokenizer, models.AutoModelForCausalLM):
        assert models._is_cached("some/one", auto)
    (cached / ONE).unlink()
    (cached / "tokenizer.json").unlink()
    (cached / "tokenizer_config.json").unlink()
    for load in (models.load_causal_lm, models.load_tokenizer):
        with pytest.raises((ValueError, AssertionError)):
            load("some/one")
    assert asked == ["some/one", "some/one"]
