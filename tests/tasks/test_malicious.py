"""A batch in which every program does harm: training goes on, and says so."""

import json
from pathlib import Path

import pytest
from coding_cases import squares

from coevolve import Trainer, fixed, magrpo, rounds
from coevolve.policies import PolicySpec
from coevolve.types import Sampling

ATTACKS = (
    "def squares(n):\n    while True:\n        pass",
    "import os\nos._exit(0)\ndef squares(n): return 0",
    "def squares(n):\n    try:\n        while True:\n            pass\n    except BaseException:\n        squares(n)",
    "import os\ndef squares(n):\n    os.kill(os.getppid(), 9)",
    "def squares(n):\n    return bytearray(1 << 40)",
    "import socket\ndef squares(n):\n    return socket.create_connection(('127.0.0.1', 22))",
)


def test_training_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = squares(monkeypatch, feedback="report")
    honest = task.grades

    def grades(cases):
        for turn in (turn for case in cases for turn in case.turns):
            turn.text = ATTACKS[turn.member]
        return honest(cases)

    task.grades = grades
    start = PolicySpec(model="coevolve-tiny", learning_rate=1e-3)
    trainer = Trainer(
        task=task, play=rounds(2, feedback=True), cast=fixed({"aux": "ann", "main": "bob"}),
        policies={"ann": start, "bob": start}, algorithm=magrpo(), sampling=Sampling(4),
        steps=2, batch_size=1, members=6,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="sandbox had to stop every program of this batch of 6"):
        trainer.run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    for line in lines:
        assert line["parts/tests"] == 0.0
        assert line["parts/stopped"] == 1.0
