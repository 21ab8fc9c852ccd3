"""Files that once ended in a traceback, a wrong blame or no word at all, and what is said of them now."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fuzzing import RECIPES, command

LAUGHS = b"\n".join(b"k%d: &k%d [%s]" % (n, n, b"*k%d, " % (n - 1) * 9 if n else b"x") for n in range(9))
QUICK = str(RECIPES / "quickstart.yaml")


def said(*argv: str) -> str:
    found = command("found before", argv)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sampling.temperature=.inf", "sampling.temperature is inf; want a finite number"),
        ("sampling.temperature=nan", "sampling.temperature is 'nan'; want a finite number"),
        ("sampling.repetition_penalty=.nan", "sampling.repetition_penalty is nan; want a finite number"),
        ("policies.ann.learning_rate=.nan", "policies.ann.learning_rate is nan; want a finite number"),
        ("algorithm.eta=.inf", "algorithm.eta is inf; want a finite number"),
        ("algorithm.eta='nan'", "algorithm: eta is 'nan'; want a finite number"),
        ("seed=99999999999999999999", "is beyond 64 bits; want a smaller number"),
        ("seed='99999999999999999999'", "seed is beyond 64 bits; want a smaller number"),
        ("seed=0x" + "f" * 6000, "is beyond 64 bits; want a smaller number"),
        ("seed=" + "9" * 5000, "put it in quotes if it is a text"),
        ("seed=2026-13-45", "'2026-13-45' is no timestamp; put it in quotes if it is a text"),
        ("seed=!!int x", "'x' is no int; put it in quotes if it is a text"),
        ("seed=!!bool x", "'x' is no bool; put it in quotes if it is a text"),
        ("seed=2026-11-23", "is a date; put it in quotes if it is a text"),
        ("output_dir='a\0b'", "not YAML: the character U+0000; want plain text"),
        ('output_dir="a\\0b"', "holds the character U+0000, which no file or prompt can; leave it out"),
        ('task.tokenizer="\\ud800"', "holds the character U+D800, which no file or prompt can; leave it out"),
        ("sampling=3", "sampling: input should be a dictionary, found 3"),
        ("play.transfer.x=1", "play.transfer is True, with no keys below it; set play.transfer as a whole"),
        ("a\nb=1", "the key 'a\\nb' is too long or cannot be seen"),
        ("task=" + "[" * 10_000, "nested deeper than 32 levels, or in itself"),
        ("task=&a [*a]", "nested deeper than 32 levels, or in itself"),
    ],
)
def test_an_override(override: str, message: str) -> None:
    given = ["play={name: chain, transfer: true}"] if "transfer" in override else []
    assert message in said("train", "--dry-run", QUICK, *given, override)


def test_a_component_named_by_an_override_takes_settings_from_the_next() -> None:
    assert command("found before", ["train", "--dry-run", QUICK, "algorithm=cory", "algorithm.eta=1"]) is None


def test_a_whole_number_may_be_written_as_a_power(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("found before", ["train", "--dry-run", QUICK, "steps=1e3"]) is None
    assert "steps: input should be a valid integer" in said("train", "--dry-run", QUICK, "steps=1.5e0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: " + b"[" * 10_000, "nested deeper than 32 levels, or in itself"),
        (b"a: &a {b: *a}", "a: nested deeper than 32 levels, or in itself"),
        (
            b"\n".join(b"k%d: &k%d [%s]" % (n, n, b"*k%d, " % (n - 1) * 9 if n else b"x") for n in range(9)),
            "100,000 values",
        ),
        ("task: x".encode("utf-16"), "is not UTF-8 text (line 1, byte 0xff); save it as UTF-8"),
        (b"\xef\xbb\xbfa: 1\n\xff", "is not UTF-8 text (line 2, byte 0xff); save it as UTF-8"),  # behind its mark
        (b"task: \x00", "line 1: not YAML: the character U+0000; want plain text"),
        (b"x: 1\n" * 300_000, "has 1.4 MiB; a file of settings has at most 1"),
        (b"base: [a]", "base is ['a']; want the path of another recipe"),
        (b"base: null", "base is None; want the path of another recipe"),
        (b"base: mine.yaml", "has a base itself; one level is the limit"),
        (b"a: &a {x: 1}\nb: {<<: *a}", "line 2: not YAML: `<<` is not read"),
        (b"kind: causal_lm", "a recipe with `kind` is for `coevolve pretrain`"),
    ],
)
def test_a_recipe(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    found = said("train", "--dry-run", str(path))
    assert message in found
    assert str(path) in found


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + Path(QUICK).read_bytes())
    assert command("found before", ["train", "--dry-run", str(path)]) is None


def test_a_team_is_no_pretraining_recipe(made: Path) -> None:
    for path in (str(made / "team" / "team.yaml"), QUICK):
        assert said("pretrain", path) == (
            f"error: {path}: kind is None; a pre-training recipe has causal_lm or classifier; this is a team's, for "
            "`coevolve train` or `coevolve eval`"
        )


def test_pretraining_into_a_folder_with_an_empty_recipe(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recipe.yaml").write_text("")
    message = said("pretrain", str(RECIPES / "pretrain-tiny.yaml"), f"output_dir={tmp_path / 'out'}")
    assert message == f"error: {tmp_path / 'out' / 'recipe.yaml'}: want keys and values, found nothing"


LINE = b'{"post": "a"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINE + b'{"post": NaN}', "line 2: NaN is no JSON; want a number, or null where there is none"),
        (LINE + b'{"post": 1e400}', "line 2: the number 1e400 is too large"),
        (LINE + b'{"post": ' + b"9" * 5000 + b"}", "line 2: the number 999999999999... of 5000 digits is too large"),
        (LINE + b"[" * 200_000, "line 2: nested too deeply"),
        (LINE + b'{"post": "\\ud800"}', "line 2: U+D800 is half a character, which no model can read; leave it out"),
        (LINE + b'{"post": 1, "post": 2}', "line 2: the key 'post' is there twice; leave one"),
        (LINE + b"\n" + LINE, "line 2: empty; want a JSON object, or no line"),
        (LINE + b'{"post": "\xff"}', "is not UTF-8 text (line 2, byte 0xff); save it as UTF-8"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows(tmp_path: Path, content: bytes, message: str, packed: bool) -> None:
    name = "rows.jsonl.gz" if packed else "rows.jsonl"
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    (tmp_path / "own.py").write_text("def answer(texts, **row):\n    return 1.0\n")
    task = {
        "name": "rows",
        "data": name,
        "prompts": {"pioneer": "{post}", "observer": "{post}"},
        "reward": "own.py:answer",
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"base": QUICK, "task": task}))
    found = said("train", "--dry-run", str(path))
    assert message in found
    assert str(tmp_path / name) in found


@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"3", b"{}", b"", b"{", b'{"a": 1}', b'{"trainer.json": null}', b"\xff"]
)
@pytest.mark.parametrize("name", ["manifest.json", "trainer.json"])
def test_a_checkpoint_is_named(made: Path, tmp_path: Path, name: str, content: bytes) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / "checkpoint-2" / name).write_bytes(content)
    found = said("train", str(run / "recipe.yaml"), f"output_dir={run}", "--resume")
    assert found.startswith(f"error: {run / 'checkpoint-2'} is torn: ")
    assert "delete the folder" in found


@pytest.mark.parametrize(
    "state",
    [
        {"step": 2}, {"step": "2"}, {"step": -1}, {"policies": {"ann": {}}},
        {"policies": {"ann": {"kl": [], "moments": {}}}},
        {"state": ["ann"]}, {"identity": None},
    ],
)  # fmt: skip
def test_a_state_of_another_kind(made: Path, tmp_path: Path, state: dict[str, Any]) -> None:
    """The manifest agrees with it: whoever wrote it wrote other keys."""
    from coevolve.runs.checkpoint import _fingerprint

    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    folder = run / "checkpoint-2"
    file, manifest = folder / "trainer.json", folder / "manifest.json"
    whole = {} if state == {"step": 2} else json.loads(file.read_text())
    file.write_text(json.dumps(whole | state))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"trainer.json": _fingerprint(file)}))
    assert str(file) in said("train", str(run / "recipe.yaml"), f"output_dir={run}", "--resume")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"reward": 1.0}\n', "metrics.jsonl, line 1: step: missing, and without a default"),
        ("metrics.jsonl", '{"step": 0}\n', "metrics.jsonl, line 1: reward: missing, and without a default"),
        ("metrics.jsonl", '{"step": 0, "reward": "much"}\n', "reward: input should be a valid number, found 'much'"),
        ("metrics.jsonl", "[]\n", "metrics.jsonl, line 1: a list; want a JSON object"),
        ("episodes.jsonl", '{"step": 0}\n', "episodes.jsonl, line 1: problem: missing, and without a default"),
        ("samples.jsonl", "{\n", "samples.jsonl, line 1: "),
        ("environment.json", "[]", "environment.json: a list; want a JSON object"),
        ("eval.json", '{"rows": []}', "eval.json: checkpoint: missing, and without a default"),
        ("diagnostics.json", '{"checkpoint": 2, "problems": 1, "samples": 1, "rows": [{"kind": "team"}]}', "rows"),
        ("recipe.yaml", "", "recipe.yaml: want keys and values, found nothing"),
        ("recipe.yaml", "seed: x", "recipe.yaml: seed is 'x'; want a whole number"),
    ],
)
def test_a_report_names_the_file(
    made: Path,
    tmp_path: Path,
    name: str,
    content: str,
    message: str,
) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / name).write_text(content)
    found = said("report", str(run), "-o", "report.html")
    assert message in found
    assert re.search(rf"{run}/\S*{re.escape(name)}", found)


def test_a_run_in_which_no_turn_was_scored(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    lines = [json.loads(line) | {"reward": None} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command("found before", ["report", str(run), "-o", "report.md"]) is None
