"""Nothing that a model, a file or a stranger wrote steers a terminal or is taken for markup, whoever shows it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from exported import RECIPES, trained
from rich.table import Table

from coevolve import Team, cli
from coevolve.console import console, printable, say
from coevolve.report.samples import show_samples
from coevolve.teams import chat
from coevolve.teams.export import export

EVIL = "\x1b]0;x\x07a\x9b31mb\rc\u202ed\u2066e[/INST]f[red]g[link=file:///x]:smile:\x00\x7f\u2028h"
SAFE = "[/INST]f[red]g[link=file:///x]:smile:"
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")  # colours, which are ours


def is_clean(shown: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in SEQUENCE.sub("", shown))


@pytest.fixture(autouse=True)
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console") / "run"
    return trained(RECIPES / "quickstart.yaml", folder, "steps=1", "batch_size=2")


def poisoned(run: Path, copy: Path) -> Path:
    """The run in which everything that a model said, and every text of the task, is evil."""
    shutil.copytree(run, copy)
    for name in ("samples.jsonl", "episodes.jsonl"):
        lines = [json.loads(line) for line in (copy / name).read_text().splitlines()]
        for line in lines:
            line["problem"], line["data"] = EVIL, {EVIL: EVIL}
            for turn in line["turns"]:
                turn |= {"text": EVIL, "role": EVIL, "policy": EVIL, "heard": [EVIL]}
        (copy / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy


def test_what_is_printable() -> None:
    text = "Grüße, 你好\u3000é \u00a0ok \U0001f469\u200d\U0001f680 نمی\u200cدانم\n\tline"
    assert printable(text) == text
    for evil in ("\x00", "\x07", "\x08", "\x0b", "\r", "\x1b", "\x7f", "\x85", "\x9b", "\u061c", "\u200e", "\u202e",
                 "\u2028", "\u2069", "\ufeff", "\ud800", "\ue000", "\U000e0041"):  # fmt: skip
        assert printable(f"a{evil}b") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("forced", [False, True])
def test_tables_texts_and_titles(forced: bool, capsys: pytest.CaptureFixture[str]) -> None:
    out = console(400, force_terminal=forced)
    table = Table(title=EVIL, caption=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    for what in (table, EVIL):
        out.print(what)
        shown = capsys.readouterr().out
        assert is_clean(shown)
        assert SAFE in SEQUENCE.sub("", shown)


def test_the_end_of_a_training(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_samples(poisoned(run, tmp_path / "run"))
    shown = capsys.readouterr().out
    assert is_clean(shown)
    assert "[/INST]" in shown
    assert "[red]" in shown


def test_reports(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = poisoned(run, tmp_path / "run\x1b]0;x\x07[red]")
    assert cli.main(["report", str(copy), "-o", str(tmp_path / "r.html")]) == 0
    assert cli.main(["report", str(copy), "-o", str(tmp_path / "r.md")]) == 0
    shown = capsys.readouterr()
    assert is_clean(shown.out + shown.err)
    assert "[red]" in shown.out


@pytest.mark.parametrize("command", ["eval", "diagnose"])
def test_measurements(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coevolve.report import evaluation
    from coevolve.report.findings import diagnostics

    if command == "eval":
        row = {**dict.fromkeys(("weights", "setting", "role", "policy", "decoding"), EVIL), f"parts/{EVIL}": 1.0}
        row |= {"reward": 1.0, "tokens": 1.0, "seconds": 1.0, f"best@1/{EVIL}": 1.0}
        evaluation.show_evaluation(
            {"checkpoint": EVIL, "problems": 1, "samples": 2, "max_new_tokens": 1, "rows": [row]}
        )
    else:
        section = diagnostics.Section("x", EVIL, EVIL, [EVIL], [[EVIL]])
        diagnostics.show([section])
    shown = capsys.readouterr().out
    assert is_clean(shown)
    assert SAFE in shown


def test_a_chat(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    play = Team.play

    def rude(self: Team, *args: Any, **options: Any) -> Any:
        episode = play(self, *args, **options)
        for turn in episode.turns:
            turn.text, turn.role, turn.policy, turn.heard = EVIL, next(iter(self.roles)), EVIL, (EVIL,)
        return episode

    monkeypatch.setattr(Team, "play", rude)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    lines = iter(["The soup was\n", ""])
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(lines))
    chat.chat(export(run, tmp_path / "team"))
    shown = capsys.readouterr().out
    assert is_clean(shown)
    assert SAFE in shown


def test_errors_and_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import warnings

    (tmp_path / "r.yaml").write_text('"\\e]0;x\\a[red]": 1\n')
    for command in ("train", "eval", "report", "export", "chat", "diagnose"):
        more = [str(tmp_path / "out")] if command == "export" else []
        assert cli.main([command, str(tmp_path / "\x1b]0;x\x07[red]"), *more]) == 2
        assert is_clean(shown := capsys.readouterr().err)
        assert "[red]" in shown
    assert cli.main(["train", str(tmp_path / "r.yaml")]) == 2
    assert is_clean(capsys.readouterr().err)
    with warnings.catch_warnings():
        warnings.showwarning = cli._warn
        warnings.warn(EVIL, stacklevel=1)
    assert is_clean(shown := capsys.readouterr().err)
    assert SAFE in shown
    say(EVIL)
    assert is_clean(capsys.readouterr().out)


def test_notices(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    from coevolve.console import Plain

    record = logging.LogRecord("coevolve", logging.INFO, "", 0, "%s", (EVIL,), None)
    assert is_clean(Plain().format(record))


def test_a_sweep(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from coevolve.sweep.show import progress, table

    copy = shutil.copytree(run, tmp_path / "run\x1b]0;x\x07[red]")
    for forced in (False, True):
        out = console(400, force_terminal=forced)
        out.print(table([copy]))
        with progress(0, 1, out) as watch:
            watch([], {copy: EVIL})
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)  # rich moves its own cursor
        assert is_clean(shown.replace("\r", ""))
        assert "[red]" in shown


def test_there_is_no_other_way_out() -> None:
    """Nothing prints but ``console``; programs that run in boxes and the writers of cards have no terminal to guard."""
    source = Path(cli.__file__).parent
    others = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(
            r"^\s*(?:[^#\"'`]*[^\w.\"'`])?(?:print|Console)\(|sys\.std(?:out|err)\.write", file.read_text(), re.M
        )
    }
    assert {name for name in others if not name.startswith("rewards/") and not name.endswith("card.py")} == {
        "console.py"
    }
