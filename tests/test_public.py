"""What ``import coevolve`` gives, and what it costs."""

import subprocess
import sys

import pytest

import coevolve
from coevolve import public


def test_the_public_names_are_there():
    for name in public.__all__:
        assert getattr(coevolve, name) is getattr(public, name)
    assert set(public.__all__) <= set(dir(coevolve))
    with pytest.raises(AttributeError, match="module 'coevolve' has no attribute 'tariner'"):
        _ = coevolve.tariner
    assert not hasattr(coevolve, "no.module")
    with pytest.raises(ImportError, match="tariner"):
        from coevolve import tariner  # noqa: F401


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_star_import_takes_the_public_names():
    assert run("from coevolve import *; print(chain.__module__, Trainer.__name__)") == "coevolve.plays.chain Trainer\n"


def test_submodules_come_with_it():
    """The pages of the reference say ``help(coevolve.types.Turn)``."""
    code = "import coevolve; print(coevolve.types.Turn.__name__, coevolve.tasks.Imdb.__name__)"
    assert run(code) == "Turn Imdb\n"


def test_the_command_line_does_not_wait_for_torch():
    assert run("import sys, coevolve.cli; print('torch' in sys.modules)") == "False\n"
