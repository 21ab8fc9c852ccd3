"""The chat: talked to as a program once, and its command here otherwise."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exported import RECIPES, trained

from coevolve import Team
from coevolve.cli import main
from coevolve.teams import chat as terminal
from coevolve.teams.export import export


@pytest.fixture(scope="module")
def opinions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    run = trained(RECIPES / "quickstart.yaml", folder / "run", "steps=1", "batch_size=2")
    return export(run, folder / "team")


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    recipe = RECIPES / "magrpo-writing-mini-2turns.yaml"
    return export(trained(recipe, folder / "run", "steps=1", "batch_size=1", "members=2"), folder / "team")


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """talk(team, what is piped in, *options) -> exit code, output, errors; without a process that imports torch."""

    def one(folder: Path, said: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        monkeypatch.setenv("COLUMNS", "40")
        code = main(["chat", str(folder), *options])
        return code, *capsys.readouterr()

    return one


def test_a_line_is_a_play_and_the_end_of_input_the_end(opinions: Path) -> None:
    lines = ["The soup at the cafe was", "soup " * 2000, "", "To me the film seemed"]
    done = subprocess.run(
        [sys.executable, "-m", "coevolve.cli", "chat", str(opinions), "--greedy"],
        input="\n".join(lines), capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"COLUMNS": "40"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    plays = done.stdout.split("\n\n")
    team = Team.load(opinions)
    for line, shown in zip((lines[0], lines[3]), (plays[0], plays[1].partition("\n")[2]), strict=True):
        first, second = team.play(line, temperature=0).turns
        assert shown.splitlines()[0].startswith(f"pioneer (ann): {first.text.strip()}".splitlines()[0])
        assert f"observer (bob, heard pioneer): {second.text.strip()}".splitlines()[0] in shown
    # the long line between the two is an error, and the chat goes on
    assert plays[1].startswith("error: ")


def test_every_column_is_asked_for_and_notes_are_shown(writers: Path, talk: Any) -> None:
    assert talk(writers, "\n")[0] == 0
    code, out, said = talk(writers, "The soup was good. I liked it.\nThe soup\nonly one of two")
    assert code == 2  # after the whole one was played
    assert "the input ends before 'opening' of the problem that begins with 'only one of two'" in said
    assert [line.split(" (")[0] for line in out.splitlines() if " (ann)" in line] == ["short", "short"]
    assert out.count("\n[") == 2  # what each writer was told after its first text


def test_no_input_is_the_end_of_it(opinions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where it is closed
    assert main(["chat", str(opinions)]) == 0


def test_the_seed_decides(opinions: Path, talk: Any) -> None:
    said = "The soup at the cafe was\n" * 2
    first, again, other = (talk(opinions, said, "--seed", seed)[1] for seed in ("1", "1", "9"))
    assert first
    assert first == again != other


def test_a_folder_that_is_no_team(tmp_path: Path, talk: Any) -> None:
    code, _, errors = talk(tmp_path, "")
    assert code == 2
    assert "is no team" in errors


def test_a_terminal_is_asked_and_answers_in_colour(
    opinions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) > 1:
            raise EOFError
        return "The soup at the cafe was"

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal.chat(opinions)
    assert asked == ["query> ", "query> "]
    assert "\x1b[1;36mpioneer (ann):" in capsys.readouterr().out


def test_control_characters_of_a_model_do_not_reach_the_terminal(
    opinions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Team.play

    def rude(self: Team, *args: Any, **options: Any) -> Any:
        episode = play(self, *args, **options)
        episode.turns[0].text = "a\x1b[2Jb\nc\x07"
        return episode

    monkeypatch.setattr(Team, "play", rude)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    lines = iter(["The soup was\n", ""])
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(lines))
    terminal.chat(opinions)
    shown = capsys.readouterr().out
    assert "a\N{REPLACEMENT CHARACTER}[2Jb\nc" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_a_columns_name_changes_nothing_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's team may call it by codes that do."""
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "x")
    assert terminal._problem(["\x1b]0;mine\x07"], True) == {"\x1b]0;mine\x07": "x"}
    assert asked == ["\ufffd]0;mine\ufffd> "]
