"""A run is a function of its recipe: interrupted or not, and however often."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from coevolve import cli
from coevolve.faults import ShortageError
from coevolve.models.names import resolve
from coevolve.pretrain import training
from coevolve.pretrain.corpus import documents
from coevolve.pretrain.recipe import folder_of, load
from coevolve.pretrain.run import main as pretrain
from coevolve.runs.lock import alone

MICRO = {
    "kind": "causal_lm",
    "steps": 6,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "batch_size": 2,
    "sequence_length": 32,
    "checkpoint_every": 2,
    "log_every": 1,
    "vocab_size": 400,
    "architecture": {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "sources": [{"name": "opinions"}],
}


@pytest.fixture(autouse=True)
def _few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 200)
    monkeypatch.setattr("coevolve.pretrain.corpus.HELD_OUT_DOCUMENTS", 10)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return _written(tmp_path, MICRO)


def _written(folder: Path, tree: dict[str, object]) -> Path:
    path = folder / "micro.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def _weights(model: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(model).state_dict())


def _assert_same(one: Path, other: Path) -> None:
    first, second = _weights(one), _weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def _losses(model: Path) -> list[tuple[int, float]]:
    lines = (model.parent / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(recipe: Path, tmp_path: Path) -> None:
    one, two, other = (
        pretrain(recipe, [f"output_dir={tmp_path / name}", f"seed={seed}"], resume=False)
        for name, seed in (("one", 0), ("two", 0), ("other", 1))
    )
    _assert_same(one, two)
    assert _losses(one) == _losses(two) != _losses(other)


def test_the_recipe_in_a_run_is_of_that_run(recipe: Path, tmp_path: Path) -> None:
    """It leaves output_dir out; by its name alone it would be another run's."""
    model = pretrain(recipe, [f"output_dir={tmp_path / 'one'}", f"seed={2**62}"], resume=False)  # beyond torch's seeds
    own = tmp_path / "one" / "recipe.yaml"
    assert resolve(str(own)) == model == tmp_path / "one" / "model"
    with pytest.raises(ValueError, match="one already holds a run; pass --resume"):
        pretrain(own, [], resume=False)
    mine = tmp_path / "recipe.yaml"  # of nobody's run, beside a model of another origin
    shutil.copy(recipe, mine)
    (tmp_path / "model").mkdir()
    assert folder_of(mine, load(mine, [])) == Path("runs/recipe-0")


def test_resume_after_any_checkpoint_ends_in_the_same_weights(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretrain(recipe, [f"output_dir={tmp_path / 'whole'}"], resume=False)
    cut = tmp_path / "cut"
    real = torch.optim.AdamW.step
    left = [5]  # updates until the power fails: one after the checkpoint of step 4

    def failing(self: torch.optim.AdamW, *rest: object) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", failing)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, [f"output_dir={cut}"], resume=False)
    monkeypatch.setattr(torch.optim.AdamW, "step", real)
    assert [step for step, _ in _losses(cut / "model")] == [1, 2, 3, 4, 5]
    resumed = pretrain(recipe, [f"output_dir={cut}"], resume=True)
    _assert_same(whole, resumed)
    assert _losses(resumed) == _losses(whole)


def test_a_line_of_losses_is_of_all_its_steps_behind_a_resume(recipe: Path, tmp_path: Path) -> None:
    every = ["steps=6", "log_every=3", "checkpoint_every=2"]
    whole = pretrain(recipe, [f"output_dir={tmp_path / 'whole'}", *every], resume=False)
    cut = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_save", _stopping(training._save))
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, [f"output_dir={cut}", *every], resume=False)
    resumed = pretrain(recipe, [f"output_dir={cut}", *every], resume=True)
    assert _losses(resumed) == _losses(whole)
    assert [step for step, _ in _losses(whole)] == [3, 6]


def _stopping(save: Any) -> Any:
    def saved(*given: Any) -> None:
        save(*given)
        raise KeyboardInterrupt

    return saved


def test_a_run_killed_by_the_system_resumes_to_the_same_weights(tmp_path: Path) -> None:
    recipe = _written(tmp_path, MICRO | {"steps": 60, "checkpoint_every": 1})
    killed = tmp_path / "killed"
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from coevolve.pretrain import corpus; from pathlib import Path\n"
        "from coevolve.pretrain.run import main as pretrain\n"
        "corpus.GENERATED_DOCUMENTS, corpus.HELD_OUT_DOCUMENTS = 200, 10\n"
        f"pretrain(Path({str(recipe)!r}), ['output_dir={killed}'], False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    while not (killed / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    resumed = pretrain(recipe, [f"output_dir={killed}"], resume=True)
    _assert_same(pretrain(recipe, [f"output_dir={tmp_path / 'whole'}"], resume=False), resumed)


def test_the_model_folder_loads_alone_with_its_own_padding(recipe: Path, tmp_path: Path) -> None:
    model = pretrain(recipe, [f"output_dir={tmp_path / 'run'}", "save_dtype=bfloat16"], resume=False)
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model, dtype="auto"), AutoTokenizer.from_pretrained(model)
    assert loaded.dtype == torch.bfloat16
    assert tokenizer.pad_token_id != tokenizer.eos_token_id == loaded.config.eos_token_id
    assert (model.parent / "recipe.yaml").is_file()
    told = json.loads((model.parent / "held_out.json").read_text())
    assert told["opinions"] == pytest.approx(400, rel=0.05)  # it knows next to nothing of its 400 tokens


def test_a_classifier_learns_the_labels(tmp_path: Path) -> None:
    tree = {key: value for key, value in MICRO.items() if key != "sources"}
    tree |= {"kind": "classifier", "source": "opinions", "steps": 120, "batch_size": 16, "learning_rate": 5e-3}
    model = pretrain(_written(tmp_path, tree), [f"output_dir={tmp_path / 'run'}"], resume=False)
    assert json.loads((model.parent / "held_out.json").read_text())["accuracy"] > 0.7
    loaded, tokenizer = AutoModelForSequenceClassification.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    assert loaded.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    fed = tokenizer(["It was bad.", "The film was great and I loved it."], padding=True, return_tensors="pt")
    assert fed["input_ids"][0, 0] == tokenizer.cls_token_id
    bad, good = loaded.eval()(**fed).logits[:, 1].tolist()
    assert good > bad


def test_a_classifiers_crops_are_no_longer_than_its_sequences(tmp_path: Path) -> None:
    """Its model has no position for more."""
    tree = {key: value for key, value in MICRO.items() if key != "sources"}
    tree |= {"kind": "classifier", "source": "opinions", "steps": 8, "batch_size": 16, "sequence_length": 16}
    tree["architecture"] = {
        "model_type": "bert", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 16,
    }  # fmt: skip
    model = pretrain(_written(tmp_path, tree), [f"output_dir={tmp_path / 'run'}"], resume=False)
    assert set(json.loads((model.parent / "held_out.json").read_text())) == {"accuracy", "accuracy_of_crops"}


def test_a_folder_with_a_run_is_not_overwritten(recipe: Path, tmp_path: Path) -> None:
    there = [f"output_dir={tmp_path / 'run'}"]
    model = pretrain(recipe, there, resume=False)
    assert pretrain(recipe, there, resume=True) == model
    claimed = (tmp_path / "run" / "recipe.yaml").read_text()
    for kept in (True, False):  # a model that is whole needs its checkpoint no more
        if not kept:
            (tmp_path / "run" / "checkpoint.pt").unlink()
        with pytest.raises(ValueError, match="already holds a run; pass --resume"):
            pretrain(recipe, there, resume=False)
        for resume in (True, False):
            with pytest.raises(ValueError, match="holds a run of another recipe"):
                pretrain(recipe, [*there, "seed=1"], resume=resume)
        assert pretrain(recipe, there, resume=True) == model
    assert (tmp_path / "run" / "recipe.yaml").read_text() == claimed


def test_a_run_of_an_earlier_version_goes_on(recipe: Path, tmp_path: Path) -> None:
    """Its recipe has a key that there is no more."""
    there = [f"output_dir={tmp_path / 'run'}"]
    model = pretrain(recipe, there, resume=False)
    with (tmp_path / "run" / "recipe.yaml").open("a") as file:
        file.write("start: null\n")
    assert pretrain(recipe, there, resume=True) == model


def test_who_wants_a_model_in_the_making_waits_for_it(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    other = threading.Thread(target=pretrain, args=(recipe, [f"output_dir={run}"], True))
    with alone(run):
        other.start()
        other.join(0.5)
        assert other.is_alive()
        assert not (run / "recipe.yaml").exists()
    other.join()
    assert (run / "model" / "config.json").is_file()


def test_a_torn_checkpoint_is_named(recipe: Path, tmp_path: Path) -> None:
    model = pretrain(recipe, [f"output_dir={tmp_path / 'run'}"], resume=False)
    (model / "config.json").unlink()
    for file in model.iterdir():
        file.unlink()
    model.rmdir()
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"half of a check")
    with pytest.raises(ValueError, match=r"checkpoint\.pt: not a checkpoint of this recipe"):
        pretrain(recipe, [f"output_dir={tmp_path / 'run'}"], resume=True)


def test_a_checkpoint_for_which_there_is_no_memory_is_not_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*given: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    (tmp_path / "checkpoint.pt").write_bytes(b"")
    monkeypatch.setattr(torch, "load", lacking)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ShortageError, match=r"checkpoint\.pt: out of memory \(") as told:
        training._restore(tmp_path, model, torch.optim.SGD(model.parameters()))
    assert "delete" not in str(told.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stepz=3", "did you mean 'steps'"),
        ("steps=true", "steps: want a number, found True"),
        ("learning_rate=on", "learning_rate: want a number, found True"),
        ("sources=[{nam: opinions}]", "did you mean 'name'"),
        ("sources=[{name: opinion}]", "no source 'opinion'"),
        ("architecture=null", "^.*micro.yaml: architecture: "),
        ("architecture.model_type=lama", "no model type 'lama'"),
        ("architecture.hiden_size=8", "not a setting of llama"),
        ("architecture.hidden_size=31", r"^architecture: .*hidden size \(31\) is not a multiple"),
        ("architecture.hidden_size=abc", r"^architecture: .*'hidden_size' expected int"),
        ("architecture.num_attention_heads=0", "^architecture: raised ZeroDivisionError"),
        ("architecture={model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 16}", "has 16 positions"),
        ("kind=poem", "poem"),
        ("batch_size=1000", "too little text"),
    ],
)
def test_mistakes_are_one_line_that_names_them(recipe: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        pretrain(recipe, [f"output_dir={tmp_path / 'run'}", override], resume=False)
    assert "\n" not in str(caught.value)


def test_a_missing_data_folder_is_named(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COEVOLVE_DATA", raising=False)
    with pytest.raises(ValueError, match=r"COEVOLVE_DATA is not set.*svamp\.jsonl\.gz"):
        pretrain(recipe, [f"output_dir={tmp_path / 'run'}", "sources=[{name: svamp}]"], resume=False)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "A film"}] * 49, "source tinystories: 49 records, of which none is held out; want at least 50"),
        ([*[{"text": "A film"}] * 56, {"txt": 1}], "source tinystories, record 57: raised KeyError: 'text'"),
    ],
)
def test_records_that_are_too_few_or_not_what_they_should_be(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Any, said: str
) -> None:
    monkeypatch.setenv("COEVOLVE_DATA", str(tmp_path))
    with gzip.open(tmp_path / "tinystories.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=re.escape(said)):
        pretrain(recipe, [f"output_dir={tmp_path / 'run'}", "sources=[{name: tinystories}]"], resume=False)


def test_every_fiftieth_record_is_held_out_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVOLVE_DATA", str(tmp_path))
    with gzip.open(tmp_path / "tinystories.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"text": str(i)}) + "\n" for i in range(100)))
    assert documents("tinystories", Random(0), held_out=True) == ["49", "99"]
    read = [str(i) for i in range(100) if i not in (49, 99)]
    assert documents("tinystories", Random(0), held_out=False) == read


def test_a_training_run_is_not_overwritten(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("task: sentiment\n")
    with pytest.raises(ValueError, match=r"run of coevolve train; choose another output_dir"):
        pretrain(recipe, [f"output_dir={run}"], False)
    assert (run / "recipe.yaml").read_text() == "task: sentiment\n"


@pytest.mark.parametrize("there", ["", "null", "[]"])
def test_a_broken_recipe_in_the_folder_is_named(recipe: Path, tmp_path: Path, there: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(there)
    with pytest.raises(ValueError, match=r"run/recipe\.yaml: want keys and values"):
        pretrain(recipe, [f"output_dir={run}"], resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_something_else_is_left_alone(recipe: Path, tmp_path: Path, resume: bool) -> None:
    model = tmp_path / "model"
    (model / "tokenizer").mkdir(parents=True)
    (model / "tokenizer" / "mine").write_text("mine")
    with pytest.raises(ValueError, match=r"model holds 'tokenizer' and no run; choose an empty or a new folder"):
        pretrain(recipe, [f"output_dir={model}"], resume=resume)
    assert [file.name for file in model.iterdir()] == ["tokenizer"]
    assert (model / "tokenizer" / "mine").read_text() == "mine"


def test_who_starts_what_another_trains_is_told_at_once(recipe: Path, tmp_path: Path) -> None:
    with alone(tmp_path / "run"), pytest.raises(ValueError, match=rf"run is in use by process {os.getpid()}"):
        pretrain(recipe, [f"output_dir={tmp_path / 'run'}"], resume=False)


def test_resuming_is_for_a_run_that_is_there(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", str(recipe), f"output_dir={tmp_path / 'run'}", "--resume"]
    assert cli.main(words) == 2
    assert "run holds no run to go on with; to start one there leave --resume out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
