"""Which dialogues a page holds, and that they are what was written."""

import base64
import gzip
import json
import random
from pathlib import Path

import pytest

from coevolve.report.findings.arms import arms
from coevolve.report.page import build as page
from coevolve.report.page import dialogues as module
from coevolve.report.page.blob import blob, rounded
from coevolve.report.page.dialogues import chosen, dialogues
from coevolve.report.page.episodes import on_grid, round_step, value
from coevolve.report.runs import find


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def turn(reward, pieces, heard=(), **more):
    finished = pieces[-1] == "<end>"
    text = "".join(pieces[:-1] if finished else pieces)
    return {"role": "solo", "policy": "ann", "round": 0, "text": text, "reward": reward, "tokens": len(pieces),
            "finished": finished, "heard": list(heard), "pieces": pieces, **more}  # fmt: skip


def record(step, number, turns):
    joints = [{"turns": list(range(len(turns))), "rewards": [t["reward"] for t in turns], "after": None}]
    return {"step": step, "problem": f"p{number}", "member": 0, "data": {"query": f"q{number}"}, "turns": turns,
            "joints": joints, "parts": {"parts/good": 0.5}}  # fmt: skip


def write_run(folder, episodes, samples=()):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "reward": 1.0, "turns": 1}) + "\n")
    for name, lines in (("episodes", episodes), ("samples", samples)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return find([folder])


def many(steps, episodes, tokens=40):
    draw = random.Random(0)
    for step in range(steps):
        for number in range(episodes):
            logps = [-draw.random() * 9 for _ in range(tokens)]
            pieces = [f" {draw.random():.3f}" for _ in range(tokens)]
            yield record(step, number, [turn(draw.random(), pieces, logps=logps)])


def restored(chunk):
    """The episodes of a chunk as the page restores them."""
    for episode in chunk["episodes"]:
        for one in episode["turns"]:
            one["pieces"] = [chunk["strings"][place] for place in one["pieces"]]
            if "prompt" in one:
                one["prompt"] = chunk["strings"][one["prompt"]]
            one["heard"] = [chunk["strings"][part[0]] if isinstance(part, list) else part for part in one["heard"]]
            one.setdefault("text", "".join(one["pieces"][:-1] if one["finished"] else one["pieces"]))
    return chunk["episodes"]


def test_few_dialogues_come_back_as_they_were_written(tmp_path):
    first = turn(0.5, [" so", " so", "<end>"], adv=[0.1234, -1e-05, None], logps=[-1.5, -2.25, -0.003])
    second = turn(
        None, [" well"], heard=[0, "Say </script> more."], logps=[-7.125], kl=[0.0], credit=2.5, prompt="<s>Go."
    )
    second["text"] = "another text than its pieces"
    packed = dialogues(write_run(tmp_path / "r", [record(0, 1, [first, second])]), 10_000)
    index = packed.index[0]["training"]
    assert (index["shown"], index["written"], index["steps"]) == (1, 1, [0])
    assert index["grid"] == {"adv": 0.0, "kl": 0.0, "logps": 0.0}
    chunk = unpacked(packed.chunks[index["chunk_of"][0]])
    assert chunk["problems"] == {"p1": {"query": "q1"}}
    [episode] = restored(chunk)
    assert (episode["value"], episode["parts"]) == (0.5, {"parts/good": 0.5})
    assert episode["joints"] == [{"turns": [0, 1], "rewards": [0.5, None], "after": None}]
    assert [{**one, "tokens": len(one["pieces"])} for one in episode["turns"]] == [first, second]


def test_many_numbers_come_back_within_the_error_that_is_stated(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_EXACT", 0)
    lines = list(many(steps=3, episodes=4))
    packed = dialogues(write_run(tmp_path / "r", lines), 1_000_000)
    index = packed.index[0]["training"]
    assert index["grid"] == {"logps": 0.02}  # 9 / 500 is 0.018
    found = [
        episode for name in dict.fromkeys(index["chunk_of"]) for episode in restored(unpacked(packed.chunks[name]))
    ]
    assert len(found) == len(lines) == index["shown"]
    for line, episode in zip(lines, found, strict=True):
        for number, told in zip(line["turns"][0]["logps"], episode["turns"][0]["logps"], strict=True):
            assert abs(told * 0.02 - number) <= 0.01 + 1e-9


def test_what_does_not_fit_is_left_out_and_counted(tmp_path):
    samples = [record(step, 0, [turn(1.0, [" held out"], logps=[-1.0])]) for step in (0, 5)]
    runs = write_run(tmp_path / "r", many(steps=10, episodes=30), samples)
    whole = sum(map(len, dialogues(runs, 10**9).chunks.values()))
    packed = dialogues(runs, whole // 2)
    assert sum(map(len, packed.chunks.values())) <= whole // 2
    index = packed.index[0]["training"]
    assert (index["written"], index["all_steps"], len(index["steps"])) == (300, 10, 10)
    assert 100 <= index["shown"] <= 150
    assert packed.index[0]["held_out"]["shown"] == 2
    none = dialogues(runs, 0)
    assert (none.chunks, none.index[0]["training"]["shown"], none.index[0]["training"]["written"]) == ({}, 0, 300)


def test_a_step_keeps_its_worst_its_best_and_a_draw():
    steps = {step: [record(step, i, [turn(float(i % 7), [" x"])]) for i in range(10)] for step in range(6)}
    kept = chosen(steps, 0.5, choice=True)
    assert list(kept) == list(steps)
    for records in kept.values():
        paid = [value(one) for one in records]
        assert (len(records), min(paid), max(paid)) == (5, 0.0, 6.0)
    assert kept == chosen(steps, 0.5, choice=True)
    assert (
        len({tuple(one["problem"] for one in records) for records in kept.values()}) > 1
    )  # not the same places always
    fewer = chosen(steps, 0.2, choice=True)  # 12 of 60: four of three steps
    assert {step: len(records) for step, records in fewer.items()} == {0: 4, 2: 4, 5: 4}
    whole = chosen(steps, 0.5, choice=False)  # held-out problems: three whole steps
    assert {step: len(records) for step, records in whole.items()} == {0: 10, 2: 10, 5: 10}


def test_episodes_nobody_scored_are_worth_nothing():
    assert value(record(0, 0, [turn(None, [" x"]), turn(3.0, [" x"]), turn(1.0, [" x"])])) == 2.0
    assert value(record(0, 0, [turn(None, [" x"])])) == 0.0


@pytest.mark.parametrize(
    ("largest", "step"), [(500, 1.0), (501, 2.0), (9, 0.02), (0.5, 0.001), (0.0, 0.0), (1e-7, 2e-10), (40000, 100.0)]
)
def test_steps_are_round(largest, step):
    assert round_step(largest) == step


def test_numbers_on_a_grid():
    assert on_grid([0.03, -0.051, None, float("nan"), float("inf")], 0.02) == [2, -3, None, None, None]
    assert on_grid([0.03, float("nan")], 0.0) == [0.03, None]


def test_a_blob_is_strict_json():
    assert unpacked(blob({"a": ["ü</script>", 1.5]})) == {"a": ["ü</script>", 1.5]}
    assert blob([1]) == blob([1])
    with pytest.raises(ValueError, match="JSON"):
        blob(float("nan"))
    assert rounded({"a": [1.23456789, float("inf"), "x", 7, None, True]}) == {"a": [1.2346, None, "x", 7, None, True]}


def test_a_page_stays_below_its_limit_and_says_what_it_left_out(tmp_path, monkeypatch):
    assert page.LIMIT == 10_000_000
    monkeypatch.setattr(page, "LIMIT", 2_300_000)
    runs = write_run(tmp_path / "r", many(steps=40, episodes=60))
    written = page.write_page(runs, tmp_path / "deep" / "report.html")
    assert 2_000_000 < written.stat().st_size <= 2_300_000
    shown = unpacked(page.content(runs).overview)["dialogues"][0]["training"]
    assert 0 < shown["shown"] < shown["written"] == 2400


def test_where_nothing_else_leaves_room_no_dialogue_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "LIMIT", 1000)  # less than the page without a run
    runs = write_run(tmp_path / "r", many(steps=4, episodes=6))
    shown = unpacked(page.content(runs).overview)["dialogues"][0]["training"]
    assert (shown["shown"], shown["written"]) == (0, 24)


def test_a_run_and_its_copy_are_two_on_the_page_as_in_the_findings(tmp_path):
    runs = [run for folder in ("a", "b") for run in write_run(tmp_path / folder / "mine-0", [])]
    found = unpacked(page.content(runs).overview)["runs"]
    assert len({run["group"] for run in found}) == 2
    assert [run["group"] for run in found] == [group.name for group in arms(runs)]


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [run for folder in ("a", "b") for run in write_run(tmp_path / folder / "mine", [])]
    found = unpacked(page.content(runs).overview)["runs"]
    assert [run["name"] for run in found] == ["mine", "mine (2)"]


def test_the_scripts_of_the_page_are_all_there():
    folder = Path(page.__file__).with_name("web")
    assert {file.stem for file in folder.glob("*.js")} == set(page._SCRIPTS)


def test_of_one_step_the_last():
    """What came of the training, and not what it began with."""
    steps = {step: [{"value": 0.0}] * 4 for step in (0, 10, 20)}
    assert list(chosen(steps, 0.4, choice=False)) == [20]
    assert list(chosen(steps, 0.7, choice=False)) == [0, 20]
