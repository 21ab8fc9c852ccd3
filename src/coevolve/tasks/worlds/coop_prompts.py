"""Prompts and feedback of task `mini-coop`. `coevolve-coop` is pre-trained on them: not a character may change."""

from __future__ import annotations

from typing import Any

FIRST = {
    "aux": "{told}# {text}\n# aux:\n",
    "main": "{told}# {text}\n# {entry}:\n",
    "coder": "{told}# {text}\n# {entry} alone:\n",
}
"""role -> the prompt of a first turn."""

AGAIN = "\n{told}# again:\n"
"""The text behind a role's own turn."""

BESIDE = {"aux": "# main is:\n{code}\n\n", "main": "# aux is:\n{code}\n\n", "coder": ""}
"""role -> how the other role's code is shown to it."""

NOTES: dict[str, Any] = {
    "again": "once more.",
    "no_code": "pass",
    "empty": "no code.",
    "syntax": "syntax error.",
    "undefined": "{name} is missing.",
    "no_return": "{name} returns nothing.",
    "not_run": "not run.",
    "all_passed": "tests {total}/{total}.",
    "some_passed": "tests {passed}/{total}.",
    "failing": "",
    "uncalled": "aux is not called.",
    "unused": "{entry} does not call aux.",
    "wrapper": "{entry} only passes aux on.",
    "ignored": "{entry} ignores aux.",
    "levels": "defined {defined}. syntax {syntax}. tests {tests}.",
    "levels_together": "called {called}.",
    "solved": "right.",
    "unsolved": "wrong.",
}
"""The wording of ``tasks.coding_feedback.Notes``."""
