"""A batch in which every program does harm: training goes on, and says so."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from coding_cases import squares

from coevolve import Trainer, fixed, magrpo, rounds
from coevolve.models.spec import PolicySpec
from coevolve.types import Sampling

ATTACKS = (
    "def squares(n):\n    while True:\n        pass\n    return n",
    "import os\nos._exit(0)\ndef squares(n): return 0",
    "def squares(n):\n    try:\n        while True: pass\n    except BaseException:\n        return squares(n)",
    "import os\ndef squares(n):\n    return os.kill(os.getppid(), 9)",
    "def squares(n):\n    return bytearray(1 << 40)",
    "import socket\ndef squares(n):\n    return socket.create_connection(('127.0.0.1', 22))",
)


BROKEN = ("def squares(n):\n    raise ValueError('\\ud800')",) * 6
"""Half a surrogate pair, which no tokenizer and no file takes."""


@pytest.mark.parametrize(("programs", "stopped"), [(ATTACKS, 1.0), (BROKEN, 0.0)], ids=["stopped", "broken text"])
def test_training_goes_on(
    programs: tuple[str, ...], stopped: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = squares(monkeypatch, seconds=1.0, feedback="report")
    honest = task.grades

    def grades(cases):
        for turn in (turn for case in cases for turn in case.turns):
            turn.text = programs[turn.member]
        return honest(cases)

    task.grades = grades
    start = PolicySpec(model="coevolve-tiny", learning_rate=1e-3)
    trainer = Trainer(
        task=task, play=rounds(2, feedback=True), cast=fixed({"aux": "ann", "main": "bob"}),
        policies={"ann": start, "bob": start}, algorithm=magrpo(), sampling=Sampling(4),
        steps=2, batch_size=1, members=6,
    )  # fmt: skip
    said = "sandbox had to stop every program of this batch of 6"
    with pytest.warns(UserWarning, match=said) if stopped else nullcontext():
        trainer.run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    for line in lines:
        assert (line["parts/tests"], line["parts/stopped"]) == (0.0, stopped)
