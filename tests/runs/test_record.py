"""Episodes written down: pieces of text, and every token's numbers in its place."""

import dataclasses
import math

import numpy
import pytest
import torch
from toy import LUCKY, toy

from coevolve import mareinforce
from coevolve.models.load import load_tokenizer
from coevolve.runs.folder import RunDir, plain, read_lines
from coevolve.runs.record import pieces, records
from coevolve.types import Episode, Problem, Turn


@pytest.mark.parametrize("text", ["The soup at the café was 👍 good.", " a  b\n\nc ", "“日本語” naïve"])
def test_pieces_put_together_are_the_text(text):
    tokenizer = load_tokenizer("coevolve-tiny")
    ids = tokenizer(text).input_ids
    for first in range(len(ids)):
        before = tokenizer.decode(ids[:first])
        found = pieces(tokenizer, ids[:first], [*ids[first:], tokenizer.eos_token_id])
        assert len(found) == len(ids) - first + 1
        assert found[-1] == tokenizer.eos_token
        if "\N{REPLACEMENT CHARACTER}" not in before:
            assert before + "".join(found[:-1]) == text


def test_every_token_has_the_numbers_that_its_update_knew(micro_model):
    trainer = toy(micro_model, batch_size=3, members=2)
    trainer.step(0)
    trainer.step(1)  # whose numbers replace those of the first
    written = records(trainer.episodes[:2], trainer.tokenizers(), trainer.lessons)
    assert len(written) == 2
    for name in ("ann", "bob"):
        batch, targets = trainer.lessons[name]
        turns = [t for e in trainer.episodes[:2] for t in e.turns if t.policy == name]
        rows = [t for record in written for t in record["turns"] if t["policy"] == name]
        for b, (turn, row) in enumerate(zip(turns, rows, strict=True)):
            n = row["tokens"]
            assert n == len(turn.action_ids) == len(row["pieces"])
            assert batch.action_BT[b, :n].tolist() == list(turn.action_ids)
            assert row["adv"] == pytest.approx(targets.adv_BT[b, :n].tolist(), rel=1e-3)
            assert row["kl"] == pytest.approx(batch.kl_BT[b, :n].tolist(), rel=1e-3, abs=1e-9)
            assert row["logps"] == pytest.approx(list(turn.logps), rel=1e-3)
            assert row["credit"] == batch.credit_B[b].item()
            assert row["reward"] == list(turn.action_ids).count(LUCKY)


def test_a_shorter_turn_has_the_numbers_at_the_front_of_its_row(micro_model):
    trainer = toy(micro_model, batch_size=2)
    trainer.step(0)
    batch, targets = trainer.lessons["ann"]
    kl_BT = torch.arange(batch.mask_BT.numel()).reshape(batch.mask_BT.shape).float()
    shorter = batch.replace(length_B=batch.length_B - 1, kl_BT=kl_BT)
    written = records(trainer.episodes, {}, {"ann": (shorter, targets)})
    rows = [t for record in written for t in record["turns"] if t["policy"] == "ann"]
    for b, row in enumerate(rows):
        assert row["kl"] == kl_BT[b, : row["tokens"] - 1].tolist()


def test_held_out_problems_have_their_prompts_as_they_were_sent(micro_model, tmp_path):
    trainer = toy(micro_model, steps=1, batch_size=2)
    tokenizer = trainer.tokenizers()["ann"]
    [record, _] = trainer.sample(2)
    trainer.step(0)
    turns = trainer.episodes[0].turns
    [written] = records(trainer.episodes[:1], trainer.tokenizers(), {}, prompts=True)
    assert [turn["prompt"] for turn in written["turns"]] == [tokenizer.decode(list(t.prompt_ids)) for t in turns]
    assert all(tokenizer(turn["prompt"]).input_ids for turn in record["turns"])
    run = toy(micro_model, steps=1, batch_size=2).run(tmp_path / "run", samples=1)
    told = [["prompt" in turn for row in read_lines(file) for turn in row["turns"]] for file in
            (run / "samples.jsonl", run / "episodes.jsonl")]  # fmt: skip
    assert all(told[0]) and not any(told[1])


def test_special_tokens_of_a_prompt_are_named():
    tokenizer = load_tokenizer("coevolve-tiny")
    end, problem = tokenizer.eos_token_id, Problem("p")
    sent = (end, *tokenizer("It was").input_ids)
    turn = Turn("solo", "ann", problem, 0, 0, sent, (end,), (0.0,), "", True)
    [written] = records([Episode(problem, 0, [turn])], {"ann": tokenizer}, {}, prompts=True)
    assert written["turns"][0]["prompt"] == f"{tokenizer.eos_token}It was"


RECORD = {"problem": "p", "member": 0, "data": {}, "turns": [], "joints": [], "parts": {}}


def test_lines_from_a_step_on_are_forgotten_and_samples_of_its_start_kept(tmp_path):
    run = RunDir(tmp_path)
    for step in range(4):
        run.append({"step": step, "reward": 0.5}, [RECORD])
        run.append_samples(step, [RECORD])
    run.truncate(2)
    kept = [[line["step"] for line in read_lines(file)] for file in (run.metrics, run.episodes, run.samples)]
    assert kept == [[0, 1], [0, 1], [0, 1, 2]]


def test_an_observer_heard_the_pioneers_turn(micro_model):
    trainer = toy(micro_model, batch_size=1)
    trainer.step(0)
    [record] = records(trainer.episodes, {}, {})
    assert [turn["heard"] for turn in record["turns"]] == [[], [0]]
    assert [turn["pieces"] for turn in record["turns"]] == [[turn["text"]] for turn in record["turns"]]
    assert "adv" not in record["turns"][0]


def test_a_run_records_training_and_held_out_problems(micro_model, tmp_path):
    run = toy(micro_model, steps=4, batch_size=4, members=2).run(tmp_path / "run", save_every=2, samples=3)
    trained, sampled = read_lines(run / "episodes.jsonl"), read_lines(run / "samples.jsonl")
    assert [row["step"] for row in trained] == [step for step in range(4) for _ in range(6)]
    assert [row["step"] for row in sampled] == [step for step in (0, 2, 4) for _ in range(3)]
    assert len({row["problem"] for row in sampled}) == 3
    assert all(turn["kl"] and "adv" not in turn for row in sampled for turn in row["turns"])
    # the start is the reference itself; up to rounding
    assert sum(abs(x) for row in sampled[:3] for turn in row["turns"] for x in turn["kl"]) < 1e-4
    assert sum(x for row in sampled[6:] for turn in row["turns"] for x in turn["kl"]) > 1e-3


def test_parts_are_written_with_the_episode(micro_model):
    trainer = toy(micro_model, batch_size=2)
    trainer.task.parts = lambda cases: [{"turns": float(len(case.turns))} for case in cases]
    line = trainer.step(0)
    assert line["parts/turns"] == 2.0
    assert records(trainer.episodes, {}, {})[0]["parts"] == {"parts/turns": 2.0}


def test_what_is_no_number_is_null_in_every_file(micro_model, tmp_path):
    rule = mareinforce()

    def advantage(lesson, state):
        found, state = rule.advantage(lesson, state)
        return {name: dataclasses.replace(aims, metrics={"odd": math.nan}) for name, aims in found.items()}, state

    trainer = toy(micro_model, steps=1, batch_size=2, algorithm=dataclasses.replace(rule, advantage=advantage))
    run = trainer.run(tmp_path / "run")
    for name in ("metrics", "episodes", "samples"):
        assert "NaN" not in (run / f"{name}.jsonl").read_text()
    assert '"agents/ann/odd": null' in (run / "metrics.jsonl").read_text()


def test_numbers_of_numpy_and_tensors_are_numbers_in_every_file(micro_model, tmp_path):
    rule, given = mareinforce(), {"a": numpy.float32(0.5), "b": torch.tensor(0.25), "c": numpy.int64(3)}

    def advantage(lesson, state):
        found, state = rule.advantage(lesson, state)
        return {name: dataclasses.replace(aims, metrics=given) for name, aims in found.items()}, state

    trainer = toy(micro_model, steps=1, batch_size=2, algorithm=dataclasses.replace(rule, advantage=advantage))
    [line] = read_lines(trainer.run(tmp_path / "run") / "metrics.jsonl")
    assert [line[f"agents/ann/{key}"] for key in "abc"] == [0.5, 0.25, 3]
    assert plain({"x": [numpy.bool_(True), numpy.float32("nan")]}) == {"x": [True, None]}


def test_held_out_problems_are_played_with_the_same_noise_always(micro_model, tmp_path):
    run = toy(micro_model, steps=4, batch_size=2, learning_rate=1e-12).run(tmp_path / "run", save_every=2, samples=3)
    said = {step: [] for step in (0, 2, 4)}
    for row in read_lines(run / "samples.jsonl"):
        said[row["step"]] += [turn["text"] for turn in row["turns"]]
    assert said[0] == said[2] == said[4]  # nothing was learnt to speak of
