"""Evaluation: who is tried, hearing what, and how the numbers are made."""

from __future__ import annotations

import json
import math
import shutil
import zlib
from itertools import combinations, count
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy import RECIPE, toy
from toy import __file__ as toy_file

from coevolve import Case, PolicySpec, Problem, Sampling, ScriptedEngine, chain, cli, discussion, marlhf, noise, rounds
from coevolve.evaluate import Row, best_at, choose, evaluate, gains
from coevolve.models.spec import RecipePolicy
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.runs import evaluated, lock
from coevolve.runs.evaluated import evaluate_recipe, evaluate_run, measure_run
from coevolve.types import Batch

CAST = {"pioneer": "ann", "observer": "bob"}


class Words:
    """Pays one per word."""

    train = test = tuple(Problem(f"p{i}") for i in range(4))

    def prompt(self, p: Problem, role: str, heard: Any) -> str:
        return " ".join([p.id, *(turn.text for turn in heard)])

    def reward(self, cases: list[Case]) -> list[list[float]]:
        return [[float(len(turn.text.split())) for turn in case.turns] for case in cases]


class Tenth:
    """A policy whose KL is 0.1 per token."""

    def describe(self, batch: Batch) -> Batch:
        return batch.replace(kl_BT=0.1 * batch.mask_BT.float())


class NoReference:
    def describe(self, batch: Batch) -> Batch:
        return batch


def script(role: str, problem: str, member: int, round: int) -> str:
    return {"pioneer": "a", "observer": "a b"}[role] + (" c d" if problem == "p0" else "")


def played(policies: dict[str, Any], engine: ScriptedEngine, **settings: Any) -> list[dict[str, Any]]:
    return evaluate(
        task=Words(), play=chain(), cast_at=CAST, policies=policies, engine=engine,
        sampling=Sampling((2, 9), temperature=0.7), problems=Words.test, **settings,
    )  # fmt: skip


def test_the_team_and_each_policy_alone_greedy_and_sampled() -> None:
    rows = played({"ann": Tenth(), "bob": Tenth()}, ScriptedEngine(script))
    assert [(row["decoding"], row["setting"], row["role"], row["policy"]) for row in rows] == [
        (decoding, *who)
        for decoding in ("greedy", "sampled")
        for who in [
            ("team", "pioneer", "ann"),
            ("team", "observer", "bob"),
            ("alone", "pioneer", "ann"),
            ("alone", "pioneer", "bob"),
        ]
    ]


def test_the_numbers() -> None:
    rows = played({"ann": Tenth(), "bob": NoReference()}, ScriptedEngine(script))
    pioneer, observer = rows[:2]
    # Words 3, 1, 1, 1: mean 1.5, sample deviation 1, standard error 1 / sqrt(4). The end of sequence is a token too.
    assert (pioneer["turns"], pioneer["reward"], pioneer["reward_se"]) == (4, 1.5, pytest.approx(0.5))
    assert (pioneer["length"], pioneer["eos_rate"]) == (2.5, 1.0)
    assert pioneer["kl"] == pytest.approx(0.25)
    assert pioneer["distinct_1"] == pytest.approx(4 / 10)  # a, c, d, end of 10 tokens
    assert pioneer["distinct_2"] == pytest.approx(4 / 6)  # a c, c d, d end, and three times a end
    assert observer["reward"] == 2.5
    assert "kl" not in observer


def test_problems_count_alike_though_their_turns_are_many_or_few() -> None:
    """The first problem ends after a turn of three words, the others have two turns of one; the last is drawn twice as
    long in one of two members."""

    def script(role: str, problem: str, member: int, round: int) -> str:
        return "a b c" if problem == "p0" else "a b" if (problem, member, round) == ("p3", 1, 1) else "a"

    class Deaf(Words):
        def prompt(self, p: Problem, role: str, heard: Any) -> str:
            return p.id

    rows = evaluate(
        task=Deaf(), play=rounds(2, done=2.5), cast_at={"main": "ann"}, policies={}, engine=ScriptedEngine(script),
        sampling=Sampling((2, 9)), problems=Words.test, samples=2,
    )  # fmt: skip
    greedy, sampled = rows
    assert (greedy["turns"], greedy["reward"]) == (7, (3 + 1 + 1 + 1) / 4)
    assert greedy["by_problem"] == {"p0": 3.0, "p1": 1.0, "p2": 1.0, "p3": 1.0}
    assert sampled["reward"] == sampled["best@1/reward"] == (3 + 1 + 1 + (1 + 1.5) / 2) / 4
    assert sampled["reward_se"] == pytest.approx(stdev([3, 1, 1, 1.25]) / 2)


def test_a_gain_is_problem_by_problem() -> None:
    def row(policy: str, setting: str = "team", **paid: float) -> Row:
        who = {"setting": setting, "role": "main", "policy": policy, "decoding": "greedy"}
        return {**who, "by_problem": paid} if paid else who

    start = [row("ann", p0=1.0, p1=5.0, p2=0.0), row("ann", "alone", p0=1.0, p1=2.0)]
    trained = [
        row("bob", p0=2.0, p1=8.0, p3=100.0),  # another policy in the same role; two problems in common
        row("ann", "alone", p0=1.5, p1=2.5),
        row("bob", "alone", p0=0.0),  # which began as ann did
        row("ann"),
    ]
    found = gains(start, trained)
    assert (found[0]["gain"], found[0]["gain_se"]) == (2.0, pytest.approx(1.0))  # 1 and 3, deviation sqrt(2)
    assert (found[1]["gain"], found[1]["gain_se"]) == (0.5, 0.0)
    assert found[2]["gain"] == -1.0
    assert math.isnan(found[2]["gain_se"])
    assert "gain" not in found[3]
    apart = [*start, row("bob", "alone", p0=4.0)]  # which did not begin alike
    assert gains(apart, trained)[2]["gain"] == -4.0
    others = [*start, row("cleo", "alone", p0=4.0)]  # two began unlike, and bob is neither
    assert ["gain" in one for one in gains(others, trained)] == [True, True, False, False]


def test_one_problem_has_no_standard_error() -> None:
    rows = evaluate(
        task=Words(), play=chain(), cast_at=CAST, policies={}, engine=ScriptedEngine(script),
        sampling=Sampling(4), problems=Words.test[:1],
    )  # fmt: skip
    assert rows[0]["reward_se"] != rows[0]["reward_se"]


def test_alone_hears_nobody_and_only_the_temperature_differs() -> None:
    engine = ScriptedEngine(script)
    played({"ann": Tenth(), "bob": Tenth()}, engine)
    heard = [engine.read(next(iter(call.values()))[0].prompt_ids) for call in engine.calls]
    assert heard == ["p0", "p0 a c d", "p0", "p0"] * 2  # team: two calls; each alone: one
    sampling = [next(iter(call.values()))[0].sampling for call in engine.calls]
    assert sampling == [Sampling(9, temperature=0.0)] * 4 + [Sampling(9, temperature=0.7)] * 4


def test_the_seed_names_the_random_numbers() -> None:
    engine = ScriptedEngine(script)
    played({}, engine, seed=7)
    assert engine.calls[0]["ann"][0].key == noise.key(7, "evaluate", "p0", 0, "pioneer", 0)


def test_whom_to_try_alone() -> None:
    rows = played({"ann": Tenth(), "bob": Tenth()}, ScriptedEngine(script), alone=["bob"])
    assert [row["policy"] for row in rows if row["setting"] == "alone"] == ["bob", "bob"]
    assert all("kl" in row for row in rows)


class Parted(Words):
    """Its reward has components, and one policy alone cannot be paid."""

    solo = False

    def parts(self, cases: list[Case]) -> list[dict[str, float]]:
        return [{"turns": float(len(case.turns)), "first": float(case.problem.id == "p0")} for case in cases]


def test_the_whole_team_has_a_row_where_the_reward_has_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevolve.evaluate.time", SimpleNamespace(perf_counter=count(0, 2).__next__))
    rows = evaluate(
        task=Parted(), play=discussion(), cast_at=CAST, policies={}, engine=ScriptedEngine(script),
        sampling=Sampling(9), problems=Words.test,
    )  # fmt: skip
    assert {row["setting"] for row in rows} == {"team"}  # nobody is tried alone
    # The first answers are not scored, and no zeros: observer 2, or 4 for p0.
    assert [row["reward"] for row in rows if row["role"] == "observer"] == [2.5, 2.5]
    whole = [row for row in rows if row["role"] == "all"]
    assert [(row["decoding"], row["policy"]) for row in whole] == [("greedy", "ann+bob"), ("sampled", "ann+bob")]
    # Of the scored round: pioneer 1 or 3 words, observer 2 or 4; team means 1.5, and 3.5 for p0: mean 2, deviation 1.
    assert (whole[0]["reward"], whole[0]["reward_se"]) == (2.0, pytest.approx(0.5))
    # Two rounds of (words + end): p0 (4 + 5) * 2, others (2 + 3) * 2: (18 + 3 * 10) / 4
    assert (whole[0]["turns"], whole[0]["tokens"]) == (16, 12.0)
    assert (whole[0]["parts/turns"], whole[0]["parts/first"]) == (2.0, 0.25)
    assert whole[0]["seconds"] == 0.5  # of 2 for four problems


class Tried(Parted):
    """What only the first problem is tried for."""

    def parts(self, cases: list[Case]) -> list[dict[str, float]]:
        found = super().parts(cases)
        tried = [
            {"tried": one["turns"] + len(case.turns[0].text.split())} for one, case in zip(found, cases, strict=True)
        ]
        return [
            one | (two if case.problem.id == "p0" else {}) for one, two, case in zip(found, tried, cases, strict=True)
        ]


def test_a_part_of_some_problems() -> None:
    rows = evaluate(
        task=Tried(), play=discussion(), cast_at={"observer": "bob"}, policies={},
        engine=ScriptedEngine(lambda role, problem, member, round: " ".join("w" * member)),
        sampling=Sampling(9), problems=Words.test[1::-1], samples=2,
    )  # fmt: skip
    whole = rows[-1]
    assert (whole["parts/first"], whole["parts/tried"]) == (0.5, 1.5)  # of 0 and 1 words, and one turn
    assert (whole["best@1/parts/tried"], whole["best@2/parts/tried"]) == (1.5, 2.0)


class Spoken(Parted):
    """With a part that samples without a word lack."""

    def parts(self, cases: list[Case]) -> list[dict[str, float]]:
        words = [len(case.turns[0].text.split()) for case in cases]
        return [{"words": float(count)} if count else {} for count in words]


def test_a_part_that_some_samples_lack_is_a_mean_over_problems() -> None:
    """As the reward is: one word and two in a problem, four in another; by samples it would be 7/3."""
    said = {("p0", 1): "w", ("p0", 2): "w w", ("p1", 2): "w w w w"}
    rows = evaluate(
        task=Spoken(), play=discussion(), cast_at={"observer": "bob"}, policies={},
        engine=ScriptedEngine(lambda role, problem, member, round: said.get((problem, member), "")),
        sampling=Sampling(9), problems=Words.test[:2], samples=3,
    )  # fmt: skip
    assert rows[-1]["parts/words"] == (1.5 + 4) / 2
    # of the reward there are three samples: of pairs of 0, 1, 2 the maxima are 1, 2, 2, and of 0, 0, 4 they are 0, 4, 4
    best = {key: value for key, value in rows[-1].items() if key.startswith("best@")}
    assert best == {
        "best@1/reward": pytest.approx((1 + 4 / 3) / 2), "best@2/reward": pytest.approx((5 / 3 + 8 / 3) / 2),
        "best@1/parts/words": (1.5 + 4) / 2,
    }  # fmt: skip


def test_the_best_of_several_samples() -> None:
    # The observer says as many words as the member's number, in p0 one more: 0..3 and 1..4.
    engine = ScriptedEngine(lambda role, problem, member, round: " ".join("w" * (member + (problem == "p0"))))
    rows = evaluate(
        task=Parted(), play=discussion(), cast_at={"observer": "bob"}, policies={}, engine=engine,
        sampling=Sampling(9), problems=Words.test[:2], samples=4,
    )  # fmt: skip
    greedy, greedy_whole, role, whole = rows
    assert (greedy["turns"], greedy_whole["turns"], role["turns"]) == (4, 4, 16)  # greedy needs no second sample
    assert not any("best@" in key for row in rows[:2] for key in row)
    # Best of 2 of 0..3: of six pairs the maxima are 1, 2, 2, 3, 3, 3: 14/6; one more for p0.
    for row in (role, whole):
        assert row["best@1/reward"] == row["reward"] == 2.0
        assert row["best@2/reward"] == pytest.approx(14 / 6 + 0.5)
        assert row["best@4/reward"] == 3.5
    assert (whole["best@4/parts/first"], whole["best@2/parts/turns"]) == (0.5, 1.0)


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        played({}, ScriptedEngine(script), samples=0)


def test_problems_are_the_same_every_time() -> None:
    few, more = choose(Words(), 2), choose(Words(), 3)
    assert more[:2] == few
    assert {p.id for p in choose(Words(), None)} == {"p0", "p1", "p2", "p3"}


@pytest.mark.parametrize("wanted", [0, 5])
def test_more_problems_than_there_are(wanted: int) -> None:
    with pytest.raises(ValueError, match=f"{wanted} problems asked for; Words has 4 held out"):
        choose(Words(), wanted)


def test_nothing_is_held_out():
    task = Words()
    task.test = []
    with pytest.raises(ValueError, match="the task Words has no held-out problems, its test is empty"):
        choose(task, None)


@pytest.fixture(scope="module")
def run(micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    (folder / "recipe.yaml").write_text(
        RECIPE.format(model=micro_model, out=folder / "run", toy=Path(toy_file).resolve())
    )
    recipe = load_recipe(folder / "recipe.yaml")
    build(recipe).run(recipe.output_dir, save_every=2, samples=1, recipe=recipe.record())
    return folder / "run"


def test_a_run_beside_its_start(
    run: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = evaluate_run(run, problems=4)
    assert json.loads((run / "eval.json").read_text()) == result
    assert (result["checkpoint"], result["problems"], result["max_new_tokens"]) == (4, 4, 5)
    start, trained = ([row for row in result["rows"] if row["weights"] == w] for w in ("start", "trained"))
    # Both policies began as the same model, so one of them alone is enough at the start.
    assert (len(start), len(trained)) == (2 * 3, 2 * 4)
    assert all(row["kl"] == pytest.approx(0, abs=1e-5) for row in start)
    assert all(row["kl"] > 0 for row in trained)
    by_role = {(r["setting"], r["role"], r["decoding"]): r["reward"] for r in start if r["setting"] == "team"}
    assert all("gain" in row for row in trained)
    for row in trained[:2]:
        assert row["gain"] == pytest.approx(row["reward"] - by_role["team", row["role"], row["decoding"]])
    assert not any("by_problem" in row for row in result["rows"])
    # Steps 2 and 3 were played after the exchange.
    assert {(r["role"], r["policy"]) for r in trained if r["setting"] == "team"} == {
        ("pioneer", "bob"),
        ("observer", "ann"),
    }
    assert "checkpoint 4, 4 held-out problems" in capsys.readouterr().out
    with caplog.at_level("INFO"), monkeypatch.context() as slow:
        slow.setattr(evaluated, "_SLOW", 0.0)
        assert evaluate_run(run, problems=4) == result
    done = [line.getMessage().rpartition(", in ")[0] for line in caplog.records if "evaluated:" in line.getMessage()]
    assert (done[0], done[-1]) == ("evaluated: start, bob+ann team, greedy", "evaluated: trained, bob alone, sampled")
    written = (run / "eval.json").read_text()
    silent = evaluate_run(run, problems=4, play="rounds")["rows"]  # nobody hears anybody
    assert [r for r in silent if r["role"] == "pioneer"] == [r for r in result["rows"] if r["role"] == "pioneer"]
    assert silent != result["rows"]
    assert (run / "eval.json").read_text() == written
    with pytest.raises(ValueError, match="play: unknown name 'rownds'; did you mean 'rounds'"):
        evaluate_run(run, play="rownds")


def test_a_run_and_its_start_are_measured_with_the_random_numbers_of_the_seed_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the two would be no pair."""
    seen: list[int] = []

    def watched(**how: Any) -> Any:
        seen.append(how["seed"])
        return evaluate(**how)

    monkeypatch.setattr(evaluated, "evaluate", watched)
    assert measure_run(run, problems=1, seed=7)["seed"] == 7
    assert seen == [7, 7]


def test_one_decoding_has_the_rows_that_it_has_beside_the_other(run: Path, tmp_path: Path) -> None:
    """And is no ``eval.json``, which reports take for the whole."""
    both = evaluate_run(run, problems=4)
    written = (run / "eval.json").read_text()
    for decoding in ("greedy", "sampled"):
        alone = evaluate_run(run, problems=4, decodings=[decoding], output=tmp_path / "new" / "it.json")
        numbers = [{**row, "seconds": 0.0} for row in both["rows"] if row["decoding"] == decoding]
        assert [{**row, "seconds": 0.0} for row in alone["rows"]] == numbers
        assert len(numbers) == 3 + 4
        assert json.loads((tmp_path / "new" / "it.json").read_text()) == alone
        evaluate_run(run, problems=4, decodings=[decoding])
    assert (run / "eval.json").read_text() == written


def test_an_unknown_decoding_is_told(run: Path) -> None:
    for decodings in ([], ["Sampled"]):
        with pytest.raises(ValueError, match=r"decodings are .*; want some of greedy, sampled"):
            evaluate_run(run, problems=1, decodings=decodings)


def test_a_recipe_is_played_by_the_decoding_and_numbers_asked_for(run: Path, tmp_path: Path) -> None:
    def rows(seed: int) -> list[dict[str, Any]]:
        how: dict[str, Any] = {"problems": 4, "seed": seed, "decodings": ["sampled"], "output": tmp_path / "it.json"}
        found = evaluate_recipe(run / "recipe.yaml", trust_code=True, **how)
        assert json.loads((tmp_path / "it.json").read_text()) == found
        assert found["seed"] == seed and {row["decoding"] for row in found["rows"]} == {"sampled"}
        return [{**row, "seconds": 0.0} for row in found["rows"]]

    one, other = rows(1), rows(2)
    assert one == rows(1) != other


def test_where_nothing_can_be_written_nothing_is_computed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("eval.json")))
    monkeypatch.setattr(evaluated, "evaluate", lambda **how: pytest.fail("it was computed"))
    (copy / "eval.json").mkdir()
    assert cli.main(["eval", str(copy), "--trust-code"]) == 1
    wrong = f"error: {copy}/eval.json cannot be written (it is a folder); see to its folder, or take a copy of it\n"
    assert capsys.readouterr().err == wrong
    (copy / "eval.json").rmdir()

    def refuse(*args: Any, **how: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OSError, match=r"eval\.json cannot be written \(Read-only file system\)"):
        evaluate_run(copy, trust_code=True)


@pytest.mark.parametrize(
    ("bob", "alone"),
    [
        ({"weights": "lora", "learning_rate": 0.1, "device": "cpu"}, ["ann"]),
        ({"model": "other"}, ["ann", "bob"]),
        ({"chat": False}, ["ann", "bob"]),
        ({"chat": {"enable_thinking": False}}, ["ann", "bob"]),
        ({"dtype": "bfloat16"}, ["ann", "bob"]),
        ({"weights": "lora", "load_in_4bit": True}, ["ann", "bob"]),
        ({"weights": "frozen", "engine": {"name": "openai", "url": "there"}}, ["ann", "bob"]),
    ],
)
def test_start_weights_that_answer_alike_are_tried_once(bob: dict[str, Any], alone: list[str]) -> None:
    specs = {"ann": RecipePolicy("m"), "bob": RecipePolicy(**{"model": "m", **bob})}
    assert evaluated._unlike(specs) == alone


@pytest.mark.filterwarnings("ignore:policies bob")  # here are processors without instructions for bfloat16
def test_start_weights_that_answer_unlike_have_rows_of_their_own(run: Path, tmp_path: Path) -> None:
    recipe = load_recipe(run / "recipe.yaml", ["policies.bob.dtype=bfloat16", "steps=1", f"output_dir={tmp_path}/run"])
    build(recipe).run(recipe.output_dir, samples=0, recipe=recipe.record())
    rows = evaluate_run(recipe.output_dir, problems=1)["rows"]
    assert {row["policy"] for row in rows if (row["weights"], row["setting"]) == ("start", "alone")} == {"ann", "bob"}


def test_a_checkpoint_that_a_training_deletes_meanwhile_is_still_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    expected = evaluate_run(copy, problems=2)["rows"]
    measured = evaluated._evaluated

    def slow(*given: Any, **how: Any) -> Any:
        shutil.rmtree(copy / "checkpoint-4", ignore_errors=True)
        lock.sweep_up(copy)  # as a training does that goes on
        return measured(*given, **how)

    monkeypatch.setattr(evaluated, "_evaluated", slow)
    assert evaluate_run(copy, problems=2)["rows"] == expected
    assert not list(copy.glob(".reading*"))


def test_of_a_checkpoint_that_does_not_fit_its_own_name_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that of the copy that is read, which is gone by then."""
    folder = Path(shutil.copytree(run, tmp_path / "run")) / "checkpoint-4"
    state, manifest = folder / "trainer.json", folder / "manifest.json"
    text = json.dumps(json.loads(state.read_text()) | {"step": "4"})
    state.write_text(text)
    sums = {"trainer.json": [len(text), zlib.crc32(text.encode())]}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | sums))
    assert cli.main(["eval", str(tmp_path / "run")]) == 2
    assert f"error: {state}: step: input should be a valid integer" in capsys.readouterr().err


def test_a_recipe_is_played_untrained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate_recipe(run / "recipe.yaml", ["policies.ann.weights=frozen"], problems=4, trust_code=True)
    of_run = [row for row in evaluate_run(run, problems=4)["rows"] if row["weights"] == "start"]
    team = [row for row in result["rows"] if row["setting"] == "team"]
    # The run was asked with the roles of its last step, and both begin as the same model.
    expected = [row | {"policy": {"ann": "bob", "bob": "ann"}[row["policy"]]} for row in of_run[:2] + of_run[3:5]]
    assert [{k: v for k, v in row.items() if k != "kl"} for row in team] == [
        {k: v for k, v in row.items() if k != "kl"} for row in expected
    ]
    assert "untrained, 4 held-out problems" in capsys.readouterr().out


def test_the_recipes_threads_are_used(run: Path) -> None:
    evaluate_recipe(run / "recipe.yaml", ["threads=3"], problems=1, trust_code=True)
    assert torch.get_num_threads() == 3
    evaluate_recipe(run / "recipe.yaml", problems=1, trust_code=True)  # says nothing: compiled loops want one
    assert torch.get_num_threads() == 1


def test_an_earlier_checkpoint(run: Path) -> None:
    rows = evaluate_run(run, problems=2, checkpoint=2)["rows"]
    assert {(r["role"], r["policy"]) for r in rows if r["setting"] == "team"} == {
        ("pioneer", "ann"),
        ("observer", "bob"),
    }


def test_a_checkpoint_that_is_not_there(run: Path) -> None:
    with pytest.raises(ValueError, match="has no checkpoint of step 3; there are 2, 4"):
        evaluate_run(run, checkpoint=3)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no run: it has no recipe\.yaml; name the folder"):
        evaluate_run(tmp_path)


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("task: sentiment")
    with pytest.raises(ValueError, match="has no checkpoint yet; train on with --resume"):
        evaluate_run(tmp_path)


def test_a_run_that_python_built(micro_model: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    toy(micro_model, steps=1).run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"^\S+run was trained from Python, .* with Trainer\.evaluate"):
        evaluate_run(tmp_path / "run")


def test_the_best_of_k_by_hand() -> None:
    # Of {1, 2, 5}: pairs (1, 2), (1, 5), (2, 5) have maxima 2, 5, 5.
    assert best_at([5, 1, 2], 2) == 4.0
    assert best_at([5, 1, 2], 1) == pytest.approx(8 / 3)
    assert best_at([5, 1, 2], 3) == 5.0
    assert best_at([100.0] * 1024, 512) == pytest.approx(100)  # of more draws than a float can count
    assert best_at([1] * 1100, 512) == pytest.approx(1)
    # Three of ten pass; of the 45 pairs 21 hold none of them: 24 / 45.
    assert best_at([1] * 3 + [0] * 7, 2) == pytest.approx(24 / 45)
    assert best_at([0, 0, 0], 2) == 0.0


def test_the_best_of_k_is_the_mean_over_all_draws() -> None:
    values = [0.3, -1.0, 2.0, 0.3, 0.9, 4.0]
    for k in range(1, 7):
        drawn = [max(some) for some in combinations(values, k)]
        assert best_at(values, k) == pytest.approx(sum(drawn) / len(drawn))


def test_the_best_of_many_samples_does_not_overflow() -> None:
    assert best_at([0.0] * 900 + [1.0] * 100, 500) == pytest.approx(1.0)


@pytest.mark.parametrize("k", [0, 4])
def test_the_best_of_more_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match=f"best of {k} of 3"):
        best_at([1, 2, 3], k)


def test_a_trainer_tries_those_who_speak_with_as_many_samples_as_asked(micro_model: str) -> None:
    """The judge of a team says nothing."""
    policies = {name: PolicySpec(model=micro_model) for name in ("ann", "bob", "judge")}
    rows = toy(micro_model, policies=policies, algorithm=marlhf(judge="judge"), play=rounds()).evaluate(1, samples=2)
    assert {row["policy"] for row in rows} == {"ann", "bob"}
    assert [row["turns"] for row in rows] == [1] * 4 + [2] * 4  # greedy, sampled
    assert "best@2/reward" in rows[-1]


def test_a_trainer_evaluates_as_a_run_is_evaluated(micro_model: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(toy=toy_file, model=micro_model, out=tmp_path / "run"))
    trainer = build(load_recipe(recipe))
    start = trainer.evaluate(4)
    trainer.run(tmp_path / "run", recipe=load_recipe(recipe).record())
    rows = [{"weights": "trained", **row} for row in trainer.evaluate(4)]
    found = evaluate_run(tmp_path / "run", problems=4, trust_code=True)["rows"]
    timed = {"seconds", "gain", "gain_se", "by_problem"}
    plain = [{key: value for key, value in row.items() if key not in timed} for row in rows]
    assert [{k: v for k, v in row.items() if k not in timed} for row in found if row["weights"] == "trained"] == plain
    assert [row["reward"] for row in start] != [row["reward"] for row in rows]


def test_a_trainer_seats_the_policies_as_in_the_last_step_that_it_trained(micro_model: str, tmp_path: Path) -> None:
    """As ``coevolve eval`` does, also if a callback ended the training early."""

    class Stop:
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 2
            seated.append({row["role"]: row["policy"] for row in trainer.evaluate(1) if row["setting"] == "team"})

    seated: list[dict[str, str]] = []
    trainer = toy(micro_model, every=1, steps=4, callbacks=[Stop()])
    trainer.run(tmp_path / "run")
    as_it_is, swapped = {"pioneer": "ann", "observer": "bob"}, {"pioneer": "bob", "observer": "ann"}
    assert [{role: one[role] for role in as_it_is} for one in seated] == [as_it_is, swapped]


@pytest.mark.parametrize("override", ["policies.*.weights=frozen", "sampling.temperature=0"])
def test_a_recipe_that_cannot_be_trained_can_be_evaluated(micro_model: str, tmp_path: Path, override: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(toy=toy_file, model=micro_model, out=tmp_path / "run"))
    rows = evaluate_recipe(recipe, [override], problems=2, trust_code=True)["rows"]
    assert {row["weights"] for row in rows} == {"start"}
