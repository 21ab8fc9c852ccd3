"""A role that a task writes no prompt for, told before training starts."""

import pytest

from coevolve import cli
from coevolve.recipe.build import build
from coevolve.recipe.plan import problems
from coevolve.recipe.read import load_recipe
from coevolve.tasks import WritingMini
from coevolve.tasks.roles import UnknownRoleError, check_prompts

RECIPE = """
task: writing-mini
play: rounds
roles: {short: ann, detailed: bob, judge: cleo}
policies: {ann: coevolve-tiny, bob: coevolve-tiny, cleo: {model: coevolve-tiny, weights: frozen}}
algorithm: magrpo
"""
MESSAGE = r"task: no role 'judge'; known: short, detailed, writer; .* wrap the task \(docs/guides/own-protocol.md\)"


@pytest.mark.parametrize("ask", [lambda recipe: list(problems(recipe)), build], ids=["problems", "build"])
def test_a_role_without_a_prompt_is_told_before_anything_starts(tmp_path, ask):
    (tmp_path / "team.yaml").write_text(RECIPE)
    with pytest.raises(ValueError, match=MESSAGE):
        ask(load_recipe(tmp_path / "team.yaml"))


def test_a_dry_run_tells_it(tmp_path, capsys):
    (tmp_path / "team.yaml").write_text(RECIPE)
    assert cli.main(["train", str(tmp_path / "team.yaml"), "--dry-run"]) == 2
    assert "no role 'judge'" in capsys.readouterr().err


class Listens(WritingMini):
    """Its second role has to hear something."""

    def prompt(self, p, role, heard):
        return heard[0].text if role == "reader" else super().prompt(p, role, heard)


def test_a_prompt_that_wants_something_heard_passes():
    task = Listens()
    check_prompts(task, ["short", "reader", "detailed"])
    with pytest.raises(UnknownRoleError, match="no role 'judge'"):
        check_prompts(task, ["reader", "judge"])
    check_prompts(object(), ["reader"])  # the trainer says what is missing
