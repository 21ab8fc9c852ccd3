"""The benchmark of a GPU beside a vLLM, as far as it runs without either: here the server always says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_server import CANNED

SMALL = "--size 1M --problems 2 --members 2 --prompt 8 --tokens 2 --vocabulary 4096 --rounds 1"


@pytest.mark.slow
def test_a_vllm_decodes_the_same_rows(program: Callable[[str], None], tmp_path: Path) -> None:
    program(f"#!{sys.executable} -IS\n{CANNED}")  # of two tokens, as the engine has to find them
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    ran = subprocess.run(
        [sys.executable, script, *SMALL.split()],
        env={**os.environ, "COEVOLVE_VLLM": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert "x our rollout" in ran.stdout
