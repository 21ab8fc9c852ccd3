"""The tab key, in a real bash and a real fish: commands, options, recipes, keys, files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coevolve import cli

BASH = """
eval "$(coevolve completion bash)"
try() {
  COMP_LINE="$1"; COMP_POINT=${#1}; COMP_TYPE=9; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _python_argcomplete coevolve
  echo "${COMPREPLY[@]}"
}
"""

FISH = """
coevolve completion fish | source
function try
  echo (complete -C $argv[1] | string split --fields 1 \\t)
end
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


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("fish", FISH)])
def test_a_real_shell_completes(shell, script, tmp_path):
    there = shutil.which(shell)
    if there is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "own.yaml").touch()
    (tmp_path / "own.txt").touch()
    program = tmp_path / "bin" / "coevolve"  # the shell's code calls the program by its name
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m coevolve.cli "$@"\n')
    program.chmod(0o755)
    asked = script + "".join(f"try {line!r}\n" for line in WANTED)
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([there, "-c", asked], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
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
