"""The tab key, in a real bash: commands, options, recipes, keys, files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coevolve import cli

SCRIPT = """
eval "$(coevolve completion bash)"
try() {
  COMP_LINE="$1"; COMP_POINT=${#1}; COMP_TYPE=9; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _python_argcomplete coevolve
  echo "${COMPREPLY[@]}"
}
"""

WANTED = {
    "coevolve ex": ["export"],
    "coevolve export --pu": ["--push-to"],
    "coevolve train quick": ["quickstart"],
    "coevolve train own": ["own.yaml"],
    "coevolve train quickstart ste": ["steps="],
    "coevolve recipes show posg-chicken-j": ["posg-chicken-joint"],
    "coevolve completion f": ["fish"],
}


def test_bash_completes(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (tmp_path / "own.yaml").touch()
    (tmp_path / "own.txt").touch()
    program = tmp_path / "bin" / "coevolve"  # the shell's code calls the program by its name
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m coevolve.cli "$@"\n')
    program.chmod(0o755)
    asked = SCRIPT + "".join(f"try {line!r}\n" for line in WANTED)
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", asked], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert dict(zip(WANTED, map(str.split, done.stdout.splitlines()), strict=True)) == WANTED, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_code(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "_ARGCOMPLETE" in said
    assert {"bash": "complete ", "zsh": "compdef", "fish": "complete --command coevolve"}[shell] in said


def test_no_torch_for_a_key(tmp_path):
    """Completing is imported for every press."""
    code = "import sys; from coevolve.commands.completion import _keys, _recipes\n"
    code += "assert 'steps=' in _keys('') and 'quickstart' in _recipes('')\n"
    code += "print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(tmp_path))
    assert done.stdout.strip() == "set()"
