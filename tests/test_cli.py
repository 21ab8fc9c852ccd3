"""The command line: what it prints, what it writes, and its exit codes."""

import contextlib
import errno
import importlib.metadata
import io
import json
import logging
import shutil
import signal
import sys
from pathlib import Path

import pytest

from coevolve import cli, faults
from coevolve.commands import quiet
from coevolve.runs.folder import read_lines
from coevolve.trainer import Trainer

SHRINK = ["steps=2", "batch_size=4", "samples=1"]
QUICKSTART = str(Path(__file__).parents[1] / "recipes" / "quickstart.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the quick start, and what was said."""
    run, said = tmp_path_factory.mktemp("trained") / "out", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main(["train", QUICKSTART, *SHRINK, f"output_dir={run}"]) == 0
    return run, said.getvalue()


def test_train_writes_a_run_and_shows_it(trained):
    run, said = trained
    assert "sampled by LocalEngine, at most 4 to 16 tokens a turn; threads " in said
    assert "step 2/2" in said
    assert f"plot: {run}/reward-kl.png" in said
    assert "before" in said and "after" in said
    assert (run / "reward-kl.png").is_file()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert [row["step"] for row in read_lines(run / "samples.jsonl")] == [0, 2]


def test_a_run_is_not_overwritten_but_resumed(trained, capsys):
    shutil.copytree(trained[0], "out")
    command = ["train", QUICKSTART, *SHRINK, "output_dir=out"]
    assert cli.main(command) == 2
    assert "already holds a run; pass --resume" in capsys.readouterr().err
    assert cli.main([*command[:2], "--resume", *command[2:], "steps=3"]) == 0  # options may stand anywhere
    steps = [json.loads(line)["step"] for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2]
    capsys.readouterr()
    assert cli.main([*command, "--resume", "seed=9", "steps=3"]) == 2
    out, err = capsys.readouterr()
    assert "belongs to another recipe: seed" in err
    assert out == ""  # before any model is loaded


def test_the_recipe_in_a_copy_of_a_run_does_not_go_on_with_the_original(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "copy")
    before = (trained[0] / "metrics.jsonl").read_text()
    words = ["train", str(run / "recipe.yaml"), "--resume", "steps=3"]
    assert cli.main(words) == 2
    said = f"its output_dir is another one, {trained[0]}; to go on with this run, say output_dir={run}"
    assert said in capsys.readouterr().err
    assert cli.main([*words, f"output_dir={run}"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert (trained[0] / "metrics.jsonl").read_text() == before


def test_dry_run_says_the_plan_and_writes_nothing(tmp_path, capsys):
    assert cli.main(["train", QUICKSTART, "--dry-run", "batch_size=8", "members=2", "policies.bob.weights=frozen"]) == 0
    said = capsys.readouterr().out
    assert "batch_size: 8" in said
    assert "would write runs/quickstart-0" in said
    assert "algorithm, with what the recipe leaves to it: cory, eta: 0.3, target_kl: None, " in said
    # 8 problems x 2 members = 16 turns of at most 16 tokens, 4 epochs of training
    assert "ann: 16 turns, at most 256 tokens sampled and 1024 trained on" in said
    assert "bob: 16 turns, at most 256 tokens sampled and 0 trained on" in said
    assert "calls of generate: 2" in said
    assert "parameters" in said and "MiB" in said
    assert "1428 training and 1068 held-out problems" in said
    assert "#   pioneer is told: The film my sister picked was\n" in said
    assert '#   observer is told: I can make this sentence "The film my sister picked was" mo' in said
    assert list(tmp_path.iterdir()) == []


def test_dry_run_says_what_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr("coevolve.recipe.build.find_spec", lambda name: None)
    assert cli.main(["train", QUICKSTART, "--dry-run", "policies.bob.weights=lora"]) == 2
    assert "policies.bob.weights: lora needs the package peft; install coevolve[lora]" in capsys.readouterr().err


def test_dry_run_refuses_what_training_refuses_at_once(trained, monkeypatch, capsys):
    def refused(*more):
        assert cli.main(["train", QUICKSTART, "--dry-run", *SHRINK, f"output_dir={trained[0]}", *more]) == 2
        return capsys.readouterr().err

    assert "already holds a run; pass --resume to go on" in refused()
    assert "is at step 2, beyond the 1 steps asked for" in refused("--resume", "steps=1")
    assert "belongs to another recipe: seed is 0 there and 9 here" in refused("--resume", "steps=3", "seed=9")
    assert "threads is 99999; want 1 to" in refused("output_dir=new", "threads=99999")
    stale = "engine={name: vllm, url: 'http://127.0.0.1:9', staleness: 1}"
    assert "the engine's staleness is 1, so turns are" in refused("output_dir=new", stale, "policies.*.weights=lora")
    Path("twice.py").write_text(
        "from coevolve import Problem\n\n\nclass Twice:\n"
        "    train = test = [Problem('a'), Problem('b'), Problem('a')]\n"
        "    def prompt(self, p, role, heard):\n        return p.id\n\n    reward = prompt\n"
    )
    assert "has 1 ids more than once, such as 'a'" in refused("output_dir=new", "task=twice.py:Twice")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "pip install 'coevolve[wandb]'" in refused("output_dir=new", "report_to=wandb")
    go_on = ["--dry-run", "--resume", *SHRINK, "steps=3", f"output_dir={trained[0]}"]
    assert cli.main(["train", QUICKSTART, *go_on]) == 0


def test_dry_run_tries_the_prompts(capsys):
    """Also those that follow an answer; no reward or feedback is asked for, which may cost money."""
    Path("mine.py").write_text(
        "from coevolve import Problem\n\n\nclass Mine:\n"
        "    train = test = [Problem('a')]\n"
        "    def prompt(self, p, role, heard):\n        return heard[0].txt if heard else role * 200\n\n"
        "    def reward(self, cases):\n        raise SystemExit('a call that costs money')\n\n    feedback = reward\n"
    )
    mine = ["train", QUICKSTART, "--dry-run", "task=mine.py:Mine"]
    told = f"#   pioneer is told: {('pioneer' * 200)[:120]} ... {('pioneer' * 200)[-120:]}\n"

    def said(*more, code=0):
        assert cli.main([*mine, *more]) == code
        return capsys.readouterr()[1 if code else 0]

    assert "error: a trial with empty answers ends: the prompt of role 'observer'" in (heard := said(code=2))
    assert "'Turn' object has no attribute 'txt'" in heard
    feedback = said("play={name: rounds, n: 2, feedback: true}")  # whose second prompt may need what was left empty
    assert f"{told}#   observer is told: observer" in feedback
    assert "# a trial with empty answers ends: " in feedback and "has no attribute 'txt'" in feedback
    assert f"{told}#   observer is told: observer" in (both := said("play=rounds")) and "ends: " not in both
    assert "; Mine has no `referee`" in said("play=refereed", code=2)


@pytest.mark.parametrize(
    ("recipe", "override", "why"),
    [
        ("magrpo-writing-mini", "members=1", "the advantage: every turn is alone in its group"),
        ("quickstart", "play={name: rounds, n: 2, feedback: true}", "has no `feedback`"),
        ("quickstart", "algorithm.credit=counterfactual", "the credit: credit counterfactual: problem "),
        ("magrpo-mini-coop-tiny-2turns", "members=1", "the advantage: every turn is alone in its group"),
    ],
)
def test_dry_run_tries_a_step(recipe, override, why, capsys):
    """A model may say nothing, so what ends a trial with empty answers could end a training."""
    assert cli.main(["train", recipe, "--dry-run", override, "output_dir=new"]) == 2
    said = capsys.readouterr().err
    assert "a trial with empty answers ends: " in said and why in said


def test_dry_run_of_more_members_than_can_be_tried(capsys):
    assert cli.main(["train", "posg-chicken-joint", "--dry-run", "members=2000"]) == 0
    assert "# no trial: with all members it would be of 2,000 episodes\n" in capsys.readouterr().out
    assert cli.main(["train", "posg-chicken-joint", "--dry-run", "members=2000000000"]) == 2
    assert "too many for any machine" in capsys.readouterr().err


def test_dry_run_where_problems_repeat_within_a_step(capsys):
    """They are each other's group, without members."""
    assert cli.main(["train", "posg-chicken-joint", "--dry-run", "members=1", "batch_size=128"]) == 0
    assert "ends: " not in capsys.readouterr().out


def test_dry_run_of_code_of_ones_own(capsys):
    """A play may need a service that is not here; a credit may cost money, or want other rewards than made-up ones."""
    Path("mine.py").write_text(
        "import random\n\nfrom coevolve import score\n\n\nasync def ask(p, team):\n"
        "    said = await team['pioneer']()\n    paid = await score(team, [said])\n"
        "    random.choices([said], weights=paid)\n    raise OSError('no service here')\n\n\n"
        "def costly():\n    def rule(episodes, reward):\n"
        "        raise SystemExit('a call that costs money')\n    return rule\n"
    )
    own = ["train", QUICKSTART, "--dry-run", "output_dir=new", "play=mine.py:ask", "algorithm.credit=mine.py:costly"]
    assert cli.main(own) == 0
    assert "# a trial with empty answers ends: " in (said := capsys.readouterr().out) and "no service here" in said
    assert cli.main([*own, "play=chain"]) == 0
    assert "ends: " not in capsys.readouterr().out


def test_dry_run_of_a_play_that_goes_on_for_ever(capsys):
    Path("mine.py").write_text(
        "from coevolve import Problem\n\n\nclass Mine:\n"
        "    train = test = [Problem('a')]\n"
        "    def prompt(self, p, role, heard):\n        return heard if heard[1:] else p.id\n\n"
        "    def reward(self, cases):\n        return [[0.0] * len(case.turns) for case in cases]\n\n"
        "    def referee(self, p, turns):\n        return [('pioneer', 'Again.')]\n"
    )
    assert cli.main(["train", QUICKSTART, "--dry-run", "task=mine.py:Mine", "play=refereed"]) == 0
    said = capsys.readouterr().out
    assert "#   pioneer is told: " in said
    assert "ends: " in said and "more than 200 turns an episode" in said


def test_dry_run_does_not_pretrain(tmp_path, capsys):
    recipe = Path(QUICKSTART).with_name("cory-imdb-tiny.yaml")
    assert cli.main(["train", str(recipe), "--dry-run"]) == 0
    assert "pretrain-imdb-lm.yaml has been run" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", QUICKSTART, "steps"], "override 'steps': want key=value"),
        (["train", "nowhere.yaml"], "error: no file nowhere.yaml"),
        (["train", QUICKSTART, "--stepz", "2"], "unknown key stepz; did you mean 'steps'?"),
        (["train", QUICKSTART, "other.yaml"], "one recipe a training"),
        (["train", "quickstart", "posg-chicken-joint"], "here are quickstart and posg-chicken-joint; `coevolve sweep`"),
        (["train", "--steps", "3", "quickstart", "seed=1"], "first: coevolve train quickstart steps=3 seed=1\n"),
        (
            ["train", "--steps=3", "--dry-run", "quickstart"],
            "the recipe comes first: coevolve train quickstart steps=3",
        ),
        (["sweep", "seed=0..2", "quickstart"], "the recipe comes first: coevolve sweep quickstart seed=0..2"),
        (["pretrain", "--seed", "1", "mine.yaml"], "the recipe comes first: coevolve pretrain mine.yaml seed=1"),
        (["eval", "--seed", "1", "quickstart"], "the recipe comes first: coevolve eval quickstart seed=1"),
        (["train", "steps=3/mine.yaml", "seed=1"], "error: no file steps=3/mine.yaml"),
        (["train", QUICKSTART, "stepz=2"], "unknown key stepz; did you mean 'steps'?"),
        (["train", QUICKSTART, "task.size=2", "--dry-run"], "task: unknown key size"),
        (
            ["train", QUICKSTART, "task.query_tokens=[8, 2]", "--dry-run"],
            "query_tokens is [8, 2]; want 1 <= low <= high",
        ),
        (["train", QUICKSTART, "report_to=wandbb"], "report_to: unknown 'wandbb'"),
        (["train", QUICKSTART, "policies.ann.model=./no/model"], "no/model"),
        (["report", "nowhere"], "nowhere is no run directory"),
        (["report", "run/checkpoint-3"], "run/checkpoint-3 is a checkpoint, which has no metrics; name its run, run"),
        (["eval", "nowhere.yaml"], "no file nowhere.yaml"),
        (["eval", "nowhere.yaml", "--checkpoint", "3"], "--checkpoint is for runs"),
        (["eval", "nowhere", "seed=1"], "seed=1: a run is evaluated as it was trained"),
        (
            ["eval", "nowhere"],
            "nowhere is no run: there is no such folder; name the folder that `coevolve train` wrote",
        ),
        (["eval", "run/checkpoint-4"], "run/checkpoint-4 is a checkpoint of a run; name run, and --checkpoint 4"),
        (["train", QUICKSTART, "algorithm={name:", "magrpo}"], "; the shell splits at blanks: quote all of it"),
        (["pretrain", "nowhere.yaml"], "error: no file nowhere.yaml"),
        (["pretrain", "pretrain-tinny"], "no recipe of the package has that name; did you mean 'pretrain-tiny'?"),
        (["pretrain", "quickstart"], "quickstart.yaml: kind is None; a pre-training recipe has"),
        (["serve", "team", "--host", ""], "--host is empty; want an address"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, said, capsys):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian", QUICKSTART], "no command 'trian'; did you mean 'train'?"),
        (
            ["train", QUICKSTART, "--dryrun"],
            "unknown argument '--dryrun'; did you mean '--dry-run'?; `coevolve train --h",
        ),
        (
            ["doctor", "--clster"],
            "unknown argument '--clster'; did you mean '--cluster'?; `coevolve doctor --help` lis",
        ),
        ([], "no command; `coevolve --help` lists them"),
    ],
)
def test_a_command_that_is_none_is_told_with_the_nearest(words, said, capsys):
    with pytest.raises(SystemExit):
        cli.main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["train", QUICKSTART, "--fast"], [], ["fly"]])
def test_words_that_mean_nothing_are_refused(words):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2


def test_what_is_missing_is_what_must_be_there(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train"])
    assert capsys.readouterr().err.endswith("the following arguments are required: recipe\n")


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("r.yaml --steps 2 --algorithm.eta=1 --resume", "r.yaml steps=2 algorithm.eta=1 --resume"),
        ("--steps 2 r.yaml --dry", "steps=2 r.yaml --dry"),
        ("r.yaml --algorithm.eta -1 --fast", "r.yaml algorithm.eta=-1 --fast"),
        ("r.yaml --fast --resume", "r.yaml --fast --resume"),
    ],
)
def test_a_key_may_be_written_as_an_option(words, made):
    _, commands = cli._parser()
    assert cli.as_overrides(words.split(), commands["train"]) == made.split()
    assert cli.as_overrides(words.split(), commands["chat"]) == words.split()  # which has no overrides


def test_a_pretraining_recipe_of_the_package_goes_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr("coevolve.pretrain.run.main", lambda recipe, overrides, resume: recipe.name)
    assert cli.main(["pretrain", "pretrain-tiny", "seed=1"]) == 0
    assert capsys.readouterr().out == "model: pretrain-tiny.yaml\n"


def test_a_run_is_evaluated_as_asked(monkeypatch):
    asked = {}
    monkeypatch.setattr("coevolve.runs.evaluated.evaluate_run", lambda run, **how: asked.update(how, run=run))
    words = "eval there --checkpoint 3 --samples 8 --play rounds --problems 5 --trust-code"
    assert cli.main(words.split()) == 0
    how = {"checkpoint": 3, "samples": 8, "play": "rounds", "problems": 5, "trust_code": True}
    assert asked == {"run": Path("there"), **how}
    assert cli.main([*words.split(), "--decoding", "greedy", "--evaluation-seed", "4", "-o", "it.json"]) == 0
    assert asked == {"run": Path("there"), **how, "decodings": ["greedy"], "seed": 4, "output": Path("it.json")}


def test_a_diagnosis_is_of_the_checkpoint_asked_for(monkeypatch, capsys):
    def diagnose(run, **how):
        raise ValueError(f"{run}: {how['problems']} problems, checkpoint {how['checkpoint']}")

    monkeypatch.setattr("coevolve.diagnose.diagnose", diagnose)
    assert cli.main(["diagnose", "there", "--checkpoint", "3", "--problems", "5"]) == 2
    assert "there: 5 problems, checkpoint 3" in capsys.readouterr().err


def test_runs_for_cross_play_add_up():
    parser, _ = cli._parser()
    args = parser.parse_args(["diagnose", "run", "--with", "a", "--with", "b", "c"])
    assert args.beside == [Path("a"), Path("b"), Path("c")]


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"coevolve {importlib.metadata.version('coevolve')}\n"


def raising(error):
    def step(self, i):
        raise error

    return step


def test_a_full_disk_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(Trainer, "step", raising(OSError(errno.ENOSPC, "No space left on device")))
    assert cli.main(["train", QUICKSTART, *SHRINK, "output_dir=out"]) == 1
    said = capsys.readouterr().err
    assert "the disk is full (OSError: [Errno 28] No space left on device" in said
    assert said.endswith("; free some space; continue with --resume\n")


def test_an_interrupt_is_exit_code_130_and_says_how_to_go_on(monkeypatch, capsys):
    real = Trainer.step
    monkeypatch.setattr(
        Trainer, "step", lambda self, i: real(self, i) if i < 1 else raising(faults.Interrupted(signal.SIGINT))(self, i)
    )
    assert cli.main(["train", QUICKSTART, *SHRINK, "output_dir=out"]) == 130
    assert "stopped at step 1 (no checkpoint yet, see save_every); continue with --resume" in capsys.readouterr().err


def test_an_interrupt_right_after_a_resume_says_the_step_it_went_on_from(trained, monkeypatch, capsys):
    shutil.copytree(trained[0], "out")
    monkeypatch.setattr(Trainer, "step", raising(faults.Interrupted(signal.SIGINT)))
    assert cli.main(["train", QUICKSTART, *SHRINK, "output_dir=out", "steps=3", "--resume"]) == 130
    assert "stopped at step 2; continue with --resume" in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(ValueError, match="no file"):
        cli.main(["train", "nowhere.yaml"])


def test_report_draws_several_runs(tmp_path, capsys):
    for seed in (0, 1):
        run = tmp_path / f"mine-{seed}"
        run.mkdir()
        lines = [json.dumps({"step": i, "reward": float(i)}) for i in range(10)]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert cli.main(["report", "mine-0", "mine-1", "--output", "both.png"]) == 0
    assert Path("both.png").is_file()
    assert cli.main(["report", "mine-0"]) == 0
    assert Path("mine-0/report.html").is_file()
    assert "mine-1: reward 0 -> 9.00" in capsys.readouterr().out


def test_what_a_library_advises_at_its_import_is_not_told(caplog):
    """On some processors bitsandbytes asks for another package, wherever peft is imported."""
    quiet()
    logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load a kernel; please install a package")
    assert caplog.records == []


def test_a_warning_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = Path(__file__).parents[1] / "recipes" / "magrpo-writing-mini.yaml"
    small = ["steps=1", "batch_size=1", "samples=0", "sampling={max_new_tokens: 2, top_p: 0.9}", "output_dir=out"]
    assert cli.main(["train", str(recipe), *small]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "top_k, top_p" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: top_k, top_p or repetition_penalty is on")
