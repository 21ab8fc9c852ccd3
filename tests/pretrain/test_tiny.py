"""The model that ships: its size, how it loads, and that it reads its reference."""

from pathlib import Path

import pytest
import torch

from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.models.names import resolve
from coevolve.pretrain.run import main as pretrain
from reference_test import reference_test


def test_it_is_small_enough_to_ship() -> None:
    folder = Path(resolve("coevolve-tiny"))
    assert sum(file.stat().st_size for file in folder.rglob("*")) <= 12e6
    assert sum(p.numel() for p in load_causal_lm("coevolve-tiny").parameters()) <= 6e6
    assert (folder / "README.md").is_file()


def test_it_loads_in_the_dtype_asked_for_and_pads_with_a_token_of_its_own() -> None:
    assert load_causal_lm("coevolve-tiny").dtype == torch.float32
    assert load_causal_lm("coevolve-tiny", torch.bfloat16).dtype == torch.bfloat16
    tokenizer = load_tokenizer("coevolve-tiny")
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|endoftext|>", "<|pad|>")
    text = "The soup at the harbour cafe was 12 times “better”."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_good_reference_makes_a_better_answer_than_a_bad_one() -> None:
    rows = reference_test(load_causal_lm("coevolve-tiny"), load_tokenizer("coevolve-tiny"), count=48).rows
    error = (rows["good"].standard_error ** 2 + rows["bad"].standard_error ** 2) ** 0.5
    assert rows["good"].mean - rows["bad"].mean > 3 * error


def test_names_that_are_no_model_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"the folder holds no config\.json, so no transformers model$"):
        resolve(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="is an adapter alone; merge it into its base"):
        resolve(str(tmp_path))
    with pytest.raises(ValueError, match="no such folder; check the path"):
        resolve("./nowhere")
    with pytest.raises(ValueError, match="no such recipe file"):
        resolve("nowhere.yaml")

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network here\nand a second line")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ValueError, match=r"model 'someone/something' cannot be loaded .*no network here") as caught:
        load_causal_lm("someone/something")
    assert "\n" not in str(caught.value)


def test_a_recipe_is_found_once_it_has_been_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 100)
    monkeypatch.setattr("coevolve.pretrain.corpus.HELD_OUT_DOCUMENTS", 5)
    Path("small.yaml").write_text(
        "{kind: causal_lm, steps: 1, learning_rate: 0.001, batch_size: 1, sequence_length: 16, vocab_size: 300, "
        "architecture: {model_type: gpt2, n_embd: 8, n_layer: 1, n_head: 1}, sources: [{name: opinions}]}"
    )
    with pytest.raises(
        ValueError, match=r"'small.yaml' has not been pre-trained yet; run coevolve pretrain small.yaml"
    ):
        resolve("small.yaml")
    folder = pretrain(Path("small.yaml"), [], resume=True)
    assert folder == Path("runs/small-0/model")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert pretrain(Path("small.yaml"), [], resume=True) == Path(resolve("small.yaml")) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
