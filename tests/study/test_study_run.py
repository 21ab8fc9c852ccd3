"""A study of one tiny arm: run, killed in the middle, gone on with, kept, doubted."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy
import yaml
from rich.console import Console

from coevolve import cli
from coevolve.commands.reproduce import _compared
from coevolve.recipe.build import pretrain
from coevolve.recipe.read import load_recipe
from coevolve.runs.environment import FILE, environment, processor
from coevolve.study import results, run
from coevolve.study.claims import read
from coevolve.study.page import cost
from coevolve.sweep.slots import Slot

pytestmark = pytest.mark.slow

STUDY = """
page: page.md
seeds: {{quick: 1, full: 6}}
arms: {{toys: {{recipe: toy.yaml}}, others: {{recipe: toy.yaml, overrides: [algorithm.eta=0.5]}}}}
premises: {{}}
claims:
  T1:
    paper: none
    says: It learns.
    number: none
    comparisons:
      - {{arm: toys, measure: held-out reward, than_measure: untrained reward,
          direction: more, margin: 0.1, matched: nothing}}
  T2:
    paper: none
    says: Not here.
    number: none
    elsewhere: {{why: It waits., recipe: toy.yaml, command: coevolve train toy.yaml, cost: a week}}
"""  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch, micro_model):
    """A folder with a study in it, which is where one is."""
    text = toy.RECIPE.format(toy=toy.__file__, model=micro_model, out="nowhere")
    (tmp_path / "toy.yaml").write_text(text.replace("steps: 4", "steps: 30").replace("save_every: 2", "save_every: 5"))
    (tmp_path / "claims.yaml").write_text(STUDY.format())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*more):
    return ["reproduce", "--study", "claims.yaml", "--jobs", "1", *more]


def killed_at(folder, what):
    """Start the study and kill it, without a warning, once its run has something of this name."""
    command = [sys.executable, "-m", "coevolve.cli", *words()]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    there = folder / "runs" / "study" / "toys-0"
    while not list(there.glob(what)):
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return there


def test_start_weights_are_told_apart_by_where_a_model_lies_from_here(here, micro_model):
    shutil.copytree(micro_model, here / "start")
    for model in ("start", str(here / "start")):
        found = results.start_weights(load_recipe(here / "toy.yaml", [f"policies.*.model={model}"]))
        assert list(found) == ["start"]


@pytest.mark.slow
def test_killed_gone_on_with_kept_and_doubted(here, capsys):
    there = killed_at(here, "checkpoint-*")
    file = results.result_file(here / "results", "toys", 0, processor())
    assert not file.exists()
    with run.alone(here / run.RUNS, wait=True):  # the training ends with the study that started it
        pass
    whole = (there / "checkpoint-30").is_dir()  # a machine that is slow to kill it
    assert cli.main(words("T1")) == 0
    said = capsys.readouterr().out
    assert "toys, seed 0: kept; 0 of 1 left" in said
    assert re.search(r"T1 +1 of 6 seeds +.*undecided +It learns\.", said)
    kept = json.loads(file.read_text())
    assert file.stat().st_size < 6500
    assert kept["defaults"]["algorithm"]["eta"] == 0.3
    (digest,) = kept["weights"].values()
    assert len(digest) == 16
    assert sum(kept["curves"]["turns"]) == 30 * 16
    assert kept["machine"] == {"processor": processor(), "compute": kept["machine"]["compute"], "threads": 1}
    assert ("resumed" in json.loads((there / "environment.json").read_text())) == (not whole)
    assert not list(there.glob("checkpoint-*"))  # what is kept is small
    assert "It learns." in (here / "page.md").read_text()

    assert cli.main(words()) == 0
    assert "nothing to run at 1 seed (`--tier full` asks for 6); `--again ARM/SEED`" in capsys.readouterr().out
    assert cli.main(words("--again", "toys/0")) == 0  # undisturbed, and the same
    assert "toys/0: the same, times and commit aside" in capsys.readouterr().out
    kept["curves"]["reward"][3] += 1
    file.write_text(json.dumps(kept))
    settings = read(Path("claims.yaml")).settings("toys")
    first = results.load(file, here / "results", settings)
    there = here / run.RUNS / "again" / "results"
    second = results.load(results.result_file(there, "toys", 0, processor()), there, settings)
    assert results.differences(first, second) == ["curves.reward.3"]


@pytest.mark.slow
def test_killed_while_it_evaluates_and_gone_on_with(here, capsys):
    """What it reads of the checkpoint is linked, and nothing is trained again."""
    (here / "toy.yaml").write_text((here / "toy.yaml").read_text().replace("steps: 30", "steps: 2"))
    there = killed_at(here, ".reading*")
    with run.alone(here / run.RUNS, wait=True):
        pass
    trained = (there / "metrics.jsonl").read_text()
    assert cli.main(words("T1")) == 0
    said = capsys.readouterr().out
    assert said.index("toys, seed 0: trained; it is evaluated now") < said.index("toys, seed 0: kept; 0 of 1 left")
    assert (there / "metrics.jsonl").read_text() == trained
    assert not list(there.glob(".reading*")) and not list(there.glob("checkpoint-*"))
    rows = json.loads((there / "eval.json").read_text())["rows"]
    assert {row["decoding"] for row in rows} == {"sampled"}


def kept_by_hand(here, **changes):
    """A result of the arm ``toys`` that nobody ran."""
    recipe = read(here / "claims.yaml").recipe("toys", 0, run.RUNS)
    made = results.Result(
        arm="toys", seed=0, recipe=results.shared_settings(recipe), evaluated=results.Evaluated(), problems=4,
        versions={}, commit="", curves={"reward": [1.0]},
        machine=results.Machine(processor="a far one", compute=(), threads=1), rows=[],
        took={"training": 7000.0, "evaluation": 200.0, "finished": "2026-11-24T12:00:00+00:00"},
    ).model_copy(update=changes)  # fmt: skip
    file = results.result_file(here / "results", "toys", made.seed, made.machine.processor)
    results.write(made, file)
    return file


def test_what_is_kept_is_read_back(here):
    file = kept_by_hand(here)
    book = read(here / "claims.yaml")
    assert run.kept(book)["a far one"]["toys"][0].took.training == 7000.0
    again = results.load(file, here / "results", book.settings("toys"))
    before = file.read_text()
    results.write(again, file)
    assert file.read_text() == before


def test_the_list_says_what_is_done_and_what_it_costs(here, capsys):
    kept_by_hand(here)
    assert cli.main(words("--list")) == 0
    said = capsys.readouterr().out
    assert "12.0 h" in said  # six seeds of two hours
    assert "not here" in said and "a week" in said
    kept_by_hand(here, machine=results.Machine(processor=processor(), compute=(), threads=1))
    assert cli.main(words("--list")) == 0
    assert "10.0 h of 12.0 h" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "lines"), [(80, 1), (130, 2)])
def test_a_narrow_list_has_a_line_for_each_claim(here, capsys, monkeypatch, columns, lines):
    says = (
        "It learns, and what it learns is said in a sentence that is longer than what is left of most terminals' lines."
    )
    (here / "claims.yaml").write_text(STUDY.format().replace("says: It learns.", f"says: {says}"))
    monkeypatch.setattr("coevolve.console.console", lambda wide: Console(width=columns))
    assert cli.main(words("--list", "T1")) == 0
    table = capsys.readouterr().out
    assert sum("learns" in line or "lines" in line for line in table.splitlines()) == lines
    assert ("…" in table) == (columns == 80)


def test_before_a_run_is_made_again_it_is_told_how_long_it_took_and_where(here, capsys, monkeypatch):
    monkeypatch.setattr(run, "_train", lambda *given: {Path("train.log"): "no memory"})
    kept_by_hand(here)
    assert cli.main(words("--again", "toys/0")) == 1
    said = "its kept run took 2.0 h, with processor a far one: numbers may round otherwise here\n"
    assert said in capsys.readouterr().out
    here_too = results.Machine(processor=processor(), compute=(), threads=1)
    own = {"coevolve": "0.0.1"}  # of which it does not depend how numbers round
    kept_by_hand(here, machine=here_too, versions=results.versions_in(environment()) | own)
    assert cli.main(words("--again", "toys/0")) == 1
    assert "its kept run took 2.0 h\n" in capsys.readouterr().out


def test_what_was_never_run_is_taken_for_what_is_nearest(here):
    """The same recipe, task or only models; of an untrained arm the evaluation alone; of other models nothing."""
    kept_by_hand(here)
    own = Path("toy.yaml").read_text()
    Path("alike.yaml").write_text(own.replace("batch_size: 8", "batch_size: 4"))
    Path("far.yaml").write_text("base: toy.yaml\ntask: sentiment\n")
    arms = (
        "arms: {start: {recipe: alike.yaml, untrained: true}, alike: {recipe: alike.yaml}, far: {recipe: far.yaml}, "
        "large: {recipe: toy.yaml, overrides: ['policies.*.model=coevolve-tiny']}, "
    )
    text = Path("claims.yaml").read_text().replace("arms: {", arms)
    compared = "arm: toys, measure: held-out reward, than_measure: untrained reward"
    for than, said in {
        "others": "about 24.0 h",
        "alike": "about 24.0 h",
        "start": "about 12.3 h",  # 200 s of evaluation
        "far": "about 24.0 h",
        "large": "at least 12.0 h",  # hours of a tiny model say nothing of it
    }.items():
        Path("claims.yaml").write_text(text.replace(compared, f"arm: toys, than: {than}, measure: end reward"))
        book = read(Path("claims.yaml"))
        done = run.kept(book)["a far one"]
        assert cost("T1", book, done) == cost("T1", book, done, ["toys", than] * 6) == said
        assert cost("T1", book, {}) == cost("T1", book, {}, ["toys"]) == "–"
        assert cost("T1", book, done, ["toys", "toys"]) == re.sub(r"(\d+\.\d h)", r"4.0 h of \1", said)
    assert cost("T1", book, done, ["large"]) == "at least 12.0 h"


def test_the_time_left_is_that_of_such_runs(here):
    kept_by_hand(here)
    text = (here / "claims.yaml").read_text()
    large = "arms: {large: {recipe: toy.yaml, overrides: ['policies.*.model=coevolve-tiny']}, "
    (here / "claims.yaml").write_text(text.replace("arms: {", large))
    book = read(here / "claims.yaml")
    done = run.one_per_seed(run.kept(book))

    def left(*arms, done=done):
        return run._Collect(book, [run.Job(arm, book.recipe(arm, 0, Path(arm))) for arm in arms], done).time_left()

    assert left("toys", "others") == ", 4.0 h of one process by what such runs took"
    assert left("toys", "large") == ", at least 2.0 h of one process by what such runs took"
    assert left("large") == left("toys", done={}) == ""


def test_a_result_of_other_settings_is_refused(here, capsys):
    file = kept_by_hand(here)
    recipe = here / "toy.yaml"
    recipe.write_text(recipe.read_text().replace("batch_size: 8", "batch_size: 9"))
    assert cli.main(words("--list")) == 2
    said = capsys.readouterr().err
    assert f"{file.relative_to(here)} was made by other settings than toys has now: batch_size is 8 there and 9" in said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rows", [3], "rows.0: input should be a valid dictionary"),
        ("took", {"training": 60.0, "evaluation": 12.0}, "took.finished"),
        ("took", {"training": 60.0, "evaluation": 12.0, "finished": "29 Nov"}, "took.finished"),
        (
            "took",
            {"training": -1, "evaluation": 12.0, "finished": "2026-11-24T12:00:00+00:00"},
            "took.training is -1; want at least 0",
        ),
    ],
)
def test_a_result_that_somebody_has_edited_is_refused_with_its_name(key, value, said, here, capsys):
    file = kept_by_hand(here)
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert cli.main(words("--list")) == 2
    assert f"{file.relative_to(here)}: {said}" in capsys.readouterr().err


def test_results_of_an_arm_under_other_defaults_are_refused(here):
    """Of a package whose defaults changed in between: the recipe says the same."""
    old = kept_by_hand(here, defaults={"algorithm": {"lam": 1.0}})
    kept_by_hand(here, seed=1)  # from before results said it
    run.kept(read(here / "claims.yaml"))
    new = kept_by_hand(here, seed=2, defaults={"algorithm": {"lam": 0.95}})
    with pytest.raises(ValueError, match=r"under other defaults: algorithm\.lam is 1\.0 there and 0\.95 here") as error:
        run.kept(read(here / "claims.yaml"))
    assert str(error.value).startswith(f"{old} and {new} are of one arm")
    for more in ({"new": False}, {"other": {"deep": False}}):
        kept_by_hand(here, seed=2, defaults={"algorithm": {"lam": 1.0, **more}})
        run.kept(read(here / "claims.yaml"))  # a switch of a later version, which is off
    kept_by_hand(here, seed=2, defaults={"algorithm": {"lam": 1.0, "new": True}})
    with pytest.raises(ValueError, match=r"algorithm\.new is 'left out' there and True here"):
        run.kept(read(here / "claims.yaml"))


def begun(here, *starts):
    """A run of the arm ``toys`` in its folder, with these starts."""
    job = run.Job("toys", read(here / "claims.yaml").recipe("toys", 0, run.RUNS / "toys-0"))
    folder = job.recipe.output_dir
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(job.recipe.record(), sort_keys=False))
    (folder / "metrics.jsonl").write_text('{"step": 0, "reward": 1.0, "turns": 1}\n')
    first, *later = starts
    (folder / FILE).write_text(json.dumps({**first, "resumed": later}))
    (folder / "checkpoint-1").mkdir()
    return job


HERE = {**environment(), "compute": {"policies": {"ann": "torch"}, "threads": 1}, "step": 0, "git_changes": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"processor": "a far one"}, f"processor was a far one and is {processor()}"),
        ({"versions": {**HERE["versions"], "torch": "1.0"}}, "torch was 1.0 and is "),
        ({"python": "2.7"}, "python was 2.7 and is "),
    ],
)
def test_a_run_begun_where_numbers_round_otherwise_is_named_before_anything_is_run(here, change, said):
    job = begun(here, HERE | change, HERE | {"step": 5})
    with pytest.raises(ValueError, match="toys, seed 0: runs/study/toys-0 was begun where numbers round") as error:
        run._left([job])
    assert said in str(error.value)
    assert str(error.value).endswith("or delete runs/study/toys-0, to make the run anew")


def test_a_run_without_a_checkpoint_is_made_anew_wherever_it_was_begun(here):
    """As it is where a result was deleted, and that is what one is told to do after an update."""
    job = begun(here, HERE | {"python": "2.7"})
    (job.recipe.output_dir / "checkpoint-1").rmdir()
    (job.recipe.output_dir / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(30)))
    assert run._left([job]) == [job.recipe]
    assert (job.recipe.output_dir / "metrics.jsonl").read_text(), "nothing is done before all were looked at"


def test_a_start_that_left_no_numbers_and_another_release_of_ours_are_no_hindrance(here):
    ours = {**HERE["versions"], "coevolve": "0.0.1"}
    job = begun(here, HERE | {"versions": ours}, HERE | {"step": 5, "processor": "a far one"}, HERE | {"step": 5})
    assert run._left([job]) == [job.recipe]
    made = results.result_of("toys", job.recipe, results.Evaluated(), {"problems": 4, "rows": []}, 1.0)
    here_now = results.commit_of(environment())  # of the evaluation
    assert (made.machine.processor, made.commit) == (processor(), f"{HERE['git_commit']}; {here_now}")


def test_a_result_keeps_the_rows_of_sampled_decoding_alone(here):
    row = {"weights": "trained", "setting": "team", "role": "pioneer", "policy": "ann"}
    rows = [row | {"decoding": "greedy", "reward": 1.0}, row | {"decoding": "sampled", "reward": 0.5}]
    made = results.result_of("toys", begun(here, HERE).recipe, results.Evaluated(), {"problems": 4, "rows": rows}, 1.0)
    assert made.rows == [row | {"reward": 0.5}]


def test_a_result_says_whether_what_computes_had_changes_that_were_not_committed():
    assert results.commit_of({"git_commit": "a", "git_changes": ["study/sums.yaml"]}) == "a, with changes"
    assert results.commit_of({"git_commit": "a", "git_changes": ["docs/x.md", "src/x.py"]}) == "a, with changes"
    assert results.commit_of({"git_commit": "a", "git_changes": ["docs/x.md"]}) == "a"


def test_a_machine_is_known_by_its_card_whatever_the_cards_number():
    def machine(card, number):
        about = {"ann": f"torch, prefix tree; not cpu: it is on cuda:{number}"}
        return results._machine([{"device": card, "compute": {"policies": about, "threads": 1}}])

    one = machine("NVIDIA H100", 0)
    assert one.compute == ("torch, prefix tree; not cpu: it is on cuda, NVIDIA H100",)
    assert one == machine("NVIDIA H100", 1)
    assert one != machine("NVIDIA H200", 0)
    plain = {"device": "NVIDIA H100", "compute": {"policies": {"ann": "torch, prefix tree"}, "threads": 1}}
    assert results._machine([plain]).compute == ("torch, prefix tree, NVIDIA H100",)
    assert results._machine([plain | {"device": "cpu"}]).compute == ("torch, prefix tree",)


def test_what_a_result_does_not_know_is_no_difference(here):
    known = {"defaults": {"play": {}}, "weights": {"a model": "x"}}
    file, book = kept_by_hand(here), read(here / "claims.yaml")
    old = results.load(file, here / "results", book.settings("toys"))
    new, changed = old.model_copy(update=known), old.model_copy(update=known | {"weights": {"a model": "y"}})
    assert results.differences(old, new) == []
    assert results.differences(new, changed) == ["weights.a model"]


def test_a_run_of_other_settings_is_named(here):
    """Of an arm whose result was deleted, as one is told to, when its settings changed."""
    job = run.Job("toys", read(here / "claims.yaml").recipe("toys", 0, run.RUNS / "toys-0"))
    folder = job.recipe.output_dir
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(job.recipe.record() | {"batch_size": 99}, sort_keys=False))
    (folder / "metrics.jsonl").write_text('{"step": 0, "reward": 1.0}\n')
    with pytest.raises(
        ValueError, match=r"toys, seed 0: .*belongs to another recipe: batch_size is 99.*; or delete runs/study/toys-0"
    ):
        run._left([job])


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("samples: 3", "evaluated.samples is 1 there and 3 here"),
        ("evaluated_by: rounds", "evaluated.play is None there and 'rounds' here"),
        ("evaluation_seed: 5", "evaluated.seed is None there and 5 here"),
    ],
)
def test_a_result_that_was_evaluated_otherwise_is_refused(here, arm, said):
    kept_by_hand(here)
    text = (here / "claims.yaml").read_text()
    (here / "claims.yaml").write_text(text.replace("toys: {recipe: toy.yaml}", f"toys: {{recipe: toy.yaml, {arm}}}"))
    with pytest.raises(ValueError, match=said):
        run.kept(read(here / "claims.yaml"))


@pytest.mark.parametrize(
    ("row", "samples"), [({"reward": 0.5}, 1), ({"best@1/reward": 0.5, "best@2/reward": 0.6, "best@8/reward": 0.9}, 8)]
)
def test_a_result_that_does_not_say_how_it_was_evaluated_has_it_in_its_rows(here, row, samples):
    file = kept_by_hand(here, rows=[row])
    tree = json.loads(file.read_text())
    del tree["evaluated"]
    file.write_text(json.dumps(tree))
    now = tree["recipe"] | {"evaluated": {"samples": samples, "play": None, "seed": 0}}
    found = results.load(file, here / "results", now)
    assert found.evaluated == results.Evaluated(samples=samples, seed=0)


def test_a_result_without_a_seed_of_its_evaluation_is_of_those_that_shared_one(here):
    file = kept_by_hand(here)
    tree = json.loads(file.read_text())
    assert tree["evaluated"].pop("seed", "left out") is None
    file.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=r"evaluated\.seed is 0 there and None here"):
        run.kept(read(here / "claims.yaml"))
    text = (here / "claims.yaml").read_text()
    shared = text.replace("toys: {recipe: toy.yaml}", "toys: {recipe: toy.yaml, evaluation_seed: 0}")
    (here / "claims.yaml").write_text(shared)
    (found,) = run.kept(read(here / "claims.yaml"))["a far one"]["toys"].values()
    assert found.evaluation_seed == 0


def compared(here):
    """The claim that compares two arms."""
    text = (here / "claims.yaml").read_text()
    ours = "arm: toys, measure: held-out reward, than_measure: untrained reward"
    (here / "claims.yaml").write_text(text.replace(ours, "arm: others, than: toys, measure: end reward"))
    return read(here / "claims.yaml")


def test_a_pair_is_made_on_one_kind_of_processor(here):
    """Half of one that is elsewhere is made again here."""
    kept_by_hand(here)
    book = compared(here)
    todo, lines = run._jobs(book, ["T1"], [0, 1], run.kept(book))
    assert [job.name for job in todo] == ["others, seed 0", "toys, seed 0", "others, seed 1", "toys, seed 1"]
    assert lines == ["1 run of these is made here again, to be paired; its result is of another processor"]


def test_what_is_paired_anywhere_is_not_made_again(here):
    kept_by_hand(here, versions={"torch": "0"})
    book = compared(here)
    done = run.kept(book)
    ours = done["a far one"]["toys"][0]
    done["a far one"]["others"] = {0: ours.model_copy(update={"arm": "others"})}
    assert run._jobs(book, ["T1"], [0], done) == ([], [])
    bare = ours.model_copy(update={"arm": "others", "curves": {"reward": [float("nan")]}})
    done["a far one"]["others"] = {0: bare}
    assert run._jobs(book, ["T1"], [0], done) == ([], [])  # refused for what it says; another one would say it, too
    done["a far one"]["others"] = {0: ours.model_copy(update={"arm": "others", "versions": {"torch": "1"}})}
    assert len(run._jobs(book, ["T1"], [0], done)[0]) == 2  # refused for how it was made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": {"MODEL": "other"}}, "would be no pair: its partners began with other weights of MODEL;"),
        ({"arm": "others", "seed": 3, "defaults": {"algorithm": {"lam": 0.9}, "play": {}}},
         "would be no run of its arm, whose others had other defaults: algorithm.lam is 0.9 there"),
    ],
)  # fmt: skip
def test_what_would_be_refused_is_told_before_it_is_run(here, change, said):
    book = compared(here)
    model = str(book.recipe("others", 0, run.RUNS).policies["ann"].model)
    change = {"weights": {model: "other"}} if "weights" in change else change
    kept_by_hand(here, machine=results.Machine(processor=processor(), compute=(), threads=1), versions=run._versions())
    ours = run.one_per_seed(run.kept(book))["toys"][0]
    one = ours.model_copy(update=change)
    done = {processor(): {"toys": {0: ours}}}
    done.setdefault("a far one" if one.seed else processor(), {})[one.arm] = {one.seed: one}
    todo, (line,) = run._jobs(book, ["T1"], [0], done)
    assert todo == []
    assert line.startswith(f"others, seed 0 {said.replace('MODEL', model)}")


PRETRAINING = """\
kind: causal_lm
steps: 1
learning_rate: 0.001
vocab_size: 300
batch_size: 1
sequence_length: 16
save_dtype: float32
architecture: {model_type: llama, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1,
  num_key_value_heads: 1}
sources: [{name: opinions}]
"""


def test_what_is_still_to_be_pretrained_has_no_start_weights(here, micro_model):
    """On another machine or day the partners' results are here and the model is not; its run will pre-train it."""
    (here / "small.yaml").write_text(PRETRAINING)
    (here / "toy.yaml").write_text((here / "toy.yaml").read_text().replace(f"{micro_model}", "small.yaml"))
    assert results.start_weights(load_recipe(here / "toy.yaml")) == {}
    machine = results.Machine(processor=processor(), compute=(), threads=1)
    kept_by_hand(here, machine=machine, versions=run._versions(), weights={"small.yaml": "theirs"})
    book = compared(here)
    todo, lines = run._jobs(book, ["T1"], [0], run.kept(book))
    assert [job.name for job in todo] == ["others, seed 0"] and lines == []
    pretrain(todo[0].recipe)
    todo, (line,) = run._jobs(book, ["T1"], [0], run.kept(book))
    assert todo == [] and line.startswith("others, seed 0 would be no pair: its partners began with other weights of")


def test_that_a_model_is_pretrained_first_is_said(here, micro_model, capsys):
    """It may take longer than all runs, which stand at step 0 meanwhile."""
    (here / "small.yaml").write_text(PRETRAINING)
    (here / "toy.yaml").write_text((here / "toy.yaml").read_text().replace(f"{micro_model}", "small.yaml"))
    kept_by_hand(here)
    book = read(here / "claims.yaml")
    assert cost("T1", book, run.kept(book)["a far one"], ["toys"]) == "at least 2.0 h of 12.0 h"
    said = (
        "small.yaml is pre-trained first, for a time that is not known; runs that need it stay at step 0 until then\n"
    )
    assert cli.main(words("T1", "--seeds", "1")) == 0
    assert said in capsys.readouterr().out
    assert cli.main(words("T1", "--seeds", "2")) == 0
    assert "pre-trained" not in capsys.readouterr().out
    assert cost("T1", book, run.kept(book)["a far one"], ["toys"]) == "2.0 h of 12.0 h"


def test_a_model_that_pays_is_among_the_start_weights(here):
    """Or the two runs of a pair might be paid by different ones."""
    (here / "small.yaml").write_text(PRETRAINING)
    recipe = load_recipe(here / "toy.yaml")
    recipe = recipe.model_copy(update={"task": {**recipe.task, "reward_model": "small.yaml"}})
    before = results.start_weights(recipe)
    pretrain(recipe)
    assert results.start_weights(recipe).keys() - before.keys() == {"small.yaml"}
    kept_by_hand(here)
    one = run.one_per_seed(run.kept(read(here / "claims.yaml")))["toys"][0]
    other = one.model_copy(update={"weights": {"small.yaml": "a"}})
    assert results.differences(one, other) == []  # which the one did not record
    assert results.differences(other, other.model_copy(update={"weights": {"small.yaml": "b"}})) == [
        "weights.small.yaml"
    ]


def test_a_study_asked_from_another_folder_says_so(here):
    """Its results name files from where they were made; nobody need delete them."""
    file = kept_by_hand(here)
    file.write_text(file.read_text().replace(str(toy.__file__), "elsewhere/toy.py"))
    with pytest.raises(
        ValueError, match=r"0\.json was made in another folder, or of another file: .* start the command there"
    ):
        run.kept(read(here / "claims.yaml"))


def test_why_two_runs_that_are_here_are_no_pair_is_told(here):
    book = compared(here)
    machine = results.Machine(processor=processor(), compute=(), threads=1)
    kept_by_hand(here, machine=machine, versions={"torch": "0"})
    ours = run.one_per_seed(run.kept(book))["toys"][0]
    theirs = ours.model_copy(update={"arm": "others", "versions": {"torch": "1"}})
    todo, lines = run._jobs(book, ["T1"], [0], {processor(): {"toys": {0: ours}, "others": {0: theirs}}})
    assert todo == []
    do = "without its result, or its partner's, it is made anew"
    assert sorted(lines) == [
        f"{arm}, seed 0 is here, and no pair: of different versions; {do}" for arm in ("others", "toys")
    ]


def test_an_evaluation_that_cannot_be_is_named_before_anything_is_run(here):
    text = (here / "claims.yaml").read_text()
    (here / "claims.yaml").write_text(text.replace("{recipe: toy.yaml}", "{recipe: toy.yaml, evaluated_by: roundz}"))
    with pytest.raises(ValueError, match=r"claims\.yaml: arms\.toys\.evaluated_by: play: .*'roundz'"):
        run._jobs(read(here / "claims.yaml"), ["T1"], [0], {})


def jobs_of(here, *seeds):
    book = read(here / "claims.yaml")
    return book, [run.Job("toys", book.recipe("toys", seed, run.RUNS / f"toys-{seed}")) for seed in seeds]


def test_an_evaluation_that_fails_stops_no_other(here, monkeypatch, capsys):
    """Its run is kept as it is, and is told at the end."""
    book, jobs = jobs_of(here, 0, 1, 2)
    collect = run._Collect(book, jobs, {})
    monkeypatch.setattr(run, "start", lambda *given: None)
    monkeypatch.setattr(collect, "_keep", lambda job: 1.0)
    for job in jobs[:2]:
        job.recipe.output_dir.mkdir(parents=True)
        collect.evaluate(job.recipe, Slot(1), 0)
    ended = {job.recipe.output_dir: why for job, why in zip(jobs, ("out of memory", None, "killed"), strict=True)}
    collect(ended)
    collect(ended)
    untold = "trained, and could not be evaluated: out of memory"
    assert collect.failed == {run.RUNS / "toys-0": untold, run.RUNS / "toys-2": "killed"}
    assert not collect.left
    assert [line.partition(" left")[0] for line in capsys.readouterr().out.splitlines()] == [
        "toys, seed 0: trained; it is evaluated now",
        "toys, seed 1: trained; it is evaluated now",
        f"toys, seed 0: {untold}; 2 of 3",
        "toys, seed 1: kept; 1 of 3",
        "toys, seed 2: killed; 0 of 3",
    ]


def test_a_result_that_cannot_be_written_stops_no_other(here, monkeypatch):
    """As on a full disk, or of an evaluation whose file somebody has deleted."""
    book, jobs = jobs_of(here, 0)
    collect = run._Collect(book, jobs, {})
    monkeypatch.setattr(run, "start", lambda *given: None)
    jobs[0].recipe.output_dir.mkdir(parents=True)
    collect.evaluate(jobs[0].recipe, Slot(1), 0)
    collect({run.RUNS / "toys-0": None})
    assert re.fullmatch(r"trained, and could not be evaluated: .*eval\.json.*", collect.failed[run.RUNS / "toys-0"])


def test_what_a_killed_evaluation_left_is_removed(here, monkeypatch):
    """It links the whole checkpoint, and nobody would come by again once the result is there; and what it had written
    would be taken for that of the next."""
    book, (job,) = jobs_of(here, 0)
    left, old = (job.recipe.output_dir / name for name in (".reading-x.tmp", "eval.json"))
    left.mkdir(parents=True)
    old.touch()
    monkeypatch.setattr(run, "start", lambda *given: None)
    run._Collect(book, [job], {}).evaluate(job.recipe, Slot(1), 0)
    assert not left.exists() and not old.exists()


def test_what_a_command_that_was_killed_left_of_a_kept_run_is_removed(here):
    """It had written the result. What another processor makes anew to pair it with its own runs is left alone."""
    ours, others = processor(), "a far one"
    for seed, begun_on in {0: ours, 1: others, 2: None}.items():
        kept_by_hand(here, seed=seed, machine=results.Machine(processor=ours, compute=(), threads=1))
        folder = here / run.RUNS / f"toys-{seed}"
        (folder / "checkpoint-30").mkdir(parents=True)
        if begun_on is not None:
            (folder / FILE).write_text(json.dumps({"step": 0, **environment(), "processor": begun_on}))
    (here / run.RUNS / "others-0" / "checkpoint-30").mkdir(parents=True)  # has no result
    assert cli.main(words("T2")) == 0
    assert sorted(one.parent.name for one in (here / run.RUNS).glob("*/checkpoint-30")) == ["others-0", "toys-1"]


def test_runs_that_fail_are_told_and_the_command_fails(here, monkeypatch, capsys):
    monkeypatch.setattr(run, "_train", lambda *given: {Path("train.log"): "no memory"})
    assert cli.main(words("T1")) == 1
    said = capsys.readouterr()
    assert "failed: train.log: no memory" in said.out
    assert "error: 1 of 1 runs failed; the same command tries them again" in said.err


def test_a_result_lies_where_its_processor_says(here, capsys):
    file = kept_by_hand(here)
    assert file == here / "results" / "toys" / "a-far-one" / "0.json"
    old = here / "results" / "toys" / "0.json"
    file.rename(old)
    assert cli.main(words("--list")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "results/toys/0.json is of toys, seed 0, on a far one; move it to results/toys/a-far-one/0.json" in said


def test_a_pair_stays_with_one_set_of_versions(here):
    """It would be refused when all of it had been run."""
    machine = results.Machine(processor=processor(), compute=(), threads=1)
    book = compared(here)
    for versions, lines in (
        (run._versions(), []),
        (run._versions() | {"coevolve": "0.0.1"}, []),
        (
            run._versions() | {"torch": "1.0"},
            [
                "others, seed 0 would be no pair: its partners were made with torch 1.0; "
                "install that, or delete their results to make all of them anew"
            ],
        ),
    ):
        kept_by_hand(here, machine=machine, versions=versions)
        assert run._jobs(book, ["T1"], [0], run.kept(book))[1] == lines


def test_a_chain_of_pairs_stays_with_one_set_of_versions(here):
    """Else the arm in the middle could be run nowhere."""
    machine = results.Machine(processor=processor(), compute=(), threads=1)
    kept_by_hand(here, machine=machine, versions=run._versions() | {"torch": "1.0"})
    text = (here / "claims.yaml").read_text().replace("full: 6", "full: 12")  # three tests want as many
    third = "others: {recipe: toy.yaml, overrides: [algorithm.eta=0.5]}"
    text = text.replace(third, f"{third}, thirds: {{recipe: toy.yaml, overrides: [algorithm.eta=0.7]}}")
    rest = "direction: more, margin: 0.1, matched: nothing}"
    middle, end = (
        f"{{arm: {a}, than: {b}, measure: end reward, {rest}" for a, b in (("others", "toys"), ("thirds", "others"))
    )
    (here / "claims.yaml").write_text(
        text.replace("    comparisons:\n", f"    comparisons:\n      - {middle}\n      - {end}\n")
    )
    book = read(here / "claims.yaml")
    _, lines = run._jobs(book, ["T1"], [0], run.kept(book))
    assert [line.split(" would be no pair")[0] for line in lines] == ["others, seed 0", "thirds, seed 0"]


def test_a_result_names_no_folder_of_its_machine(here):
    (here / "more.yaml").write_text("kind: causal_lm\n")
    kept = results.shared_settings(load_recipe("toy.yaml", ["policies.ann.model=more.yaml"]))
    assert kept["policies"]["ann"]["model"] == "more.yaml"
    assert str(here) not in json.dumps(kept["policies"])


def test_a_run_that_is_made_again_is_compared_with_the_one_of_this_processor(here, monkeypatch):
    for seed in (0, 1):
        kept_by_hand(here, seed=seed)
    ours = results.Machine(processor=processor(), compute=(), threads=1)
    kept_by_hand(here, curves={"reward": [2.0]}, machine=ours)
    shutil.copytree(here / "results", here / run.RUNS / "again" / "results")
    monkeypatch.setattr(run, "_train", lambda *given: {})
    assert run.again(read(here / "claims.yaml"), "toys", 0) == ([], [])


@pytest.mark.parametrize(("said", "seed"), [("", 2), (", evaluation_seed: 0", 0)])
def test_an_arm_is_evaluated_by_the_play_and_the_random_numbers_it_names(here, monkeypatch, said, seed):
    text = (here / "claims.yaml").read_text()
    (here / "claims.yaml").write_text(
        text.replace("toys: {recipe: toy.yaml}", f"toys: {{recipe: toy.yaml, samples: 3, evaluated_by: rounds{said}}}")
    )
    book, (job,) = jobs_of(here, 2)
    job.recipe.output_dir.mkdir(parents=True)
    started = []
    monkeypatch.setattr(run, "start", lambda words, *given: started.append(words))
    run._Collect(book, [job], {}).evaluate(job.recipe, Slot(1), 0)
    asked = {}
    monkeypatch.setattr("coevolve.runs.evaluated.evaluate_run", lambda folder, **how: asked.update(how, run=folder))
    assert cli.main(started[0]) == 0
    there = job.recipe.output_dir
    how = {"samples": 3, "play": "rounds", "seed": seed, "decodings": ["sampled"], "output": there / "eval-rounds.json"}
    assert asked == {"run": there, "problems": None, "checkpoint": None, "trust_code": False, **how}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["T3"], "no claim 'T3'"),
        (["--seeds", "0..6"], "want some of 0..5"),
        (["--seeds", "3..1"], "error: --seeds 3..1: want some of 0..5, such as 0..3,7\n"),
        (["--seeds", "[", "T1"], "error: --seeds [: want some of 0..5, such as 0..3,7\n"),
        (["--again", "toys"], "want an arm of claims.yaml and a seed"),
        (["--again", "toys/6"], "want an arm of claims.yaml and a seed of 0..5"),
        (["--again", "toys/0", "T1"], "--again takes no claims; leave T1 out"),
        (["--page", "page.md", "T1"], "--page takes no claims; leave T1 out"),
        (["--again", "toys/3"], "toys, seed 3 has no result"),
        (["--page", "claims.yaml/page.md"], "--page: claims.yaml is a file"),
        (["--page", "page.txt"], "want a name that ends in .md or .html"),
        (["--study", "none.yaml"], "no file none.yaml"),
    ],
)
def test_a_mistake_is_told(here, capsys, more, said):
    assert cli.main(words(*more)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("differ", "unkept", "said"),
    [
        ([], [], "the same, times and commit aside"),
        (
            ["machine.processor", "versions.torch"],
            ["parts/tidy"],
            "the same, times and commit aside; not in the kept one: parts/tidy; "
            "made elsewhere: machine.processor, versions.torch",
        ),
        (["curves.kl.3"], [], "not the same: curves.kl.3"),
        (
            ["machine.processor", *(f"curves.kl.{i}" for i in range(7))],
            [],
            "not the same: curves.kl.0, curves.kl.1, curves.kl.2, curves.kl.3, curves.kl.4 and 2 more; "
            "made elsewhere: machine.processor, where rounding differs",
        ),
    ],
)
def test_two_runs_of_one_seed_are_compared_in_words(differ, unkept, said):
    assert _compared(differ, unkept) == said


def test_a_metric_that_only_the_run_made_anew_has_is_told_and_is_no_difference(here):
    """Or no result could be checked any more once a part of a reward is told that was not told before."""
    file = kept_by_hand(here)
    bare = results.load(file, here / "results", read(here / "claims.yaml").settings("toys"))
    start, trained = {"weights": "start", "reward": 1.0}, {"weights": "trained", "reward": 2.0}
    anew = bare.model_copy(update={"curves": {"reward": [1.0], "turns": [4.0]}, "rows": [start, trained]})
    kept = bare.model_copy(update={"curves": {"reward": [1.0]}, "rows": [{"weights": "start"}, trained]})
    assert results.unkept(kept, anew) == ["turns", "reward"]
    assert results.differences(kept, anew) == []
    assert results.unkept(anew, kept) == []  # what the run made anew has no more is a difference
    assert {"curves.turns.0", "rows.0.reward"} <= set(results.differences(anew, kept))
    longer = anew.model_copy(update={"rows": [start, trained, trained]})
    assert "rows.2.reward" in results.differences(anew, longer)  # a row more is one, too


def test_what_is_not_here_is_said(here, capsys):
    assert cli.main(words("T2")) == 0
    assert "T2 is not decided here: It waits. coevolve train toy.yaml" in capsys.readouterr().out


def test_the_verdicts_of_the_claims_asked_for_are_printed_also_where_nothing_is_to_run(here, capsys):
    assert cli.main(words("T2")) == 0
    said = capsys.readouterr().out
    assert "nothing to run" in said
    assert cli.main(words("--list", "T2")) == 0
    table = capsys.readouterr().out
    assert re.search(r"T2 +not here +a week +not run here +Not here\.", table)
    assert said.endswith(table)
    assert "T1" not in table
    kept_by_hand(here)
    assert cli.main(words("--seeds", "0", "T1", "T2")) == 0
    assert re.search(r"T1 +0 of 6 seeds, 1 refused .*\n +T2 +not here", capsys.readouterr().out)


def test_a_page_is_named_by_where_it_lies_from_here(here, capsys, monkeypatch):
    (here / "study").mkdir()
    (here / "study" / "claims.yaml").write_text(STUDY.format().replace("page: page.md", "page: ../docs/study.md"))
    asked = ["reproduce", "--study", str(here / "study" / "claims.yaml")]
    assert cli.main([*asked, "T2"]) == 0
    assert "page: docs/study.md\npage: docs/study.html\n" in capsys.readouterr().out
    monkeypatch.chdir(here / "docs")
    assert cli.main([*asked, "--page", "../beside.html"]) == 0
    assert capsys.readouterr().out == f"page: {here.resolve() / 'beside.html'}\n"


def test_long_curves_are_thinned():
    agent = {"agents/ann/updates": 4, "agents/ann/loss": 1.0}
    lines = [{"reward": float(i), "turns": 2, "time/step": 1.0, "cast": {}, **agent} for i in range(100)]
    found = results._thinned(lines)
    assert found["reward"][:2] == [1.0, 4.0]
    assert len(found["reward"]) == 34
    assert (sum(found["turns"]), sum(found["agents/ann/updates"])) == (200, 400)
    assert set(found) == {"reward", "turns", "agents/ann/updates"}


def test_another_order_of_the_roles_is_another_arm(here):
    one = results.shared_settings(load_recipe("toy.yaml"))
    other = one | {"roles": dict(reversed(one["roles"].items()))}
    assert one == other and results.differs(one, dict(one)) == ""
    assert results.differs(one, other).startswith("the order of roles is ['pioneer', 'observer'] there and ['obs")


def with_a_premise(here):
    text = (here / "claims.yaml").read_text().replace("premises: {}", "premises: {reads: {recipe: toy.yaml}}")
    (here / "claims.yaml").write_text(text.replace("says: It learns.", "says: It learns.\n    premise: reads"))


def test_what_a_premise_needs_is_pretrained_before_it_is_measured(here, monkeypatch):
    """Its recipe may name a model by its pre-training recipe, and a reward model that is first used after sampling."""
    with_a_premise(here)
    done = []
    monkeypatch.setattr(run, "pretrain", lambda recipe: done.append(("pretrained", recipe.task)))
    monkeypatch.setattr(results, "start_weights", lambda recipe: done.append("weights read") or {})
    measured = {"slope": 1.0, "gain": 0.5}
    monkeypatch.setattr("coevolve.diagnose.premise.premise", lambda recipe: done.append("measured") or measured)
    run._measure_premises(read(here / "claims.yaml"), ["T1"])
    assert done == [("pretrained", load_recipe("toy.yaml").task), "weights read", "measured"]


def test_a_premise_of_other_start_weights_is_told_where_its_claim_is_run(here, monkeypatch, capsys):
    """A list or a page says what was measured, on whatever machine."""
    with_a_premise(here)
    monkeypatch.setattr("coevolve.diagnose.premise.premise", lambda recipe: {"slope": 1.0, "gain": 0.5})
    book = read(here / "claims.yaml")
    assert run._measure_premises(book, ["T1"]) == []
    run_weights = json.loads((here / "results" / "premises" / "reads.json").read_text())["weights"]
    assert run_weights
    monkeypatch.setattr(results, "start_weights", lambda recipe: dict.fromkeys(run_weights, "another"))
    assert run.premises(book)["reads"]["slope"] == 1.0
    assert run._measure_premises(book, ["T1"]) == ["premise reads"]
    assert "reads.json is of other start weights than are here; bring those back" in capsys.readouterr().out


def test_a_premise_that_cannot_be_measured_stops_no_run(here, monkeypatch, capsys):
    with_a_premise(here)

    def fails(recipe):
        raise ValueError("its data is not here")

    monkeypatch.setattr("coevolve.diagnose.premise.premise", fails)
    monkeypatch.setattr(run, "_train", lambda *given: {})
    assert cli.main(words("T1")) == 1
    said = capsys.readouterr()
    assert "failed: premise reads: its data is not here" in said.out and "1 run to make" in said.out
    assert "error: premise reads failed; the same command tries them again" in said.err
    assert (here / "page.md").is_file()


def test_a_run_begun_with_other_defaults_is_not_gone_on_with(here):
    book = read(here / "claims.yaml")
    job = run.Job("toys", book.recipe("toys", 0, run.RUNS / "toys-0"))
    now = run._checked(book, job)
    folder = job.recipe.output_dir
    folder.mkdir(parents=True)
    for settings in (now, {**now, "algorithm": {**now["algorithm"], "eta": 3.0}}):
        (folder / FILE).write_text(json.dumps({"step": 0, **environment(), "settings": settings}))
        if settings is now:
            results.check_starts(folder, now)
    with pytest.raises(ValueError, match=r"toys-0 was begun with other defaults: algorithm\.eta is 3\.0 there"):
        results.check_starts(folder, now)


def test_a_run_by_other_code_is_not_gone_on_with_to_see_what_todays_gives(here, monkeypatch):
    kept_by_hand(here, machine=results.Machine(processor=processor(), compute=(), threads=1))
    left = here / run.RUNS / "again" / "toys-0"
    left.mkdir(parents=True)
    (left / "begun").touch()
    monkeypatch.setattr(run, "_train", lambda *given: {"": str((left / "begun").exists())})
    for commit, there in (("another", "False"), (environment()["git_commit"], "True")):
        left.mkdir(parents=True, exist_ok=True)
        (left / "begun").touch()
        (left / FILE).write_text(
            json.dumps({"step": 0, "git_commit": commit, "git_changes": environment()["git_changes"]})
        )
        with pytest.raises(ChildProcessError, match=there):
            run.again(read(here / "claims.yaml"), "toys", 0)


def test_the_same_settings_by_other_means(here):
    one = load_recipe("toy.yaml", ["seed=1", "output_dir=x"])
    two = load_recipe("toy.yaml", ["seed=2", "save_every=7", "threads=2"])
    assert results.shared_settings(one) == results.shared_settings(two)
    assert results.differs(
        results.shared_settings(one), results.shared_settings(load_recipe("toy.yaml", ["steps=5"]))
    ) == ("steps is 30 there and 5 here")
