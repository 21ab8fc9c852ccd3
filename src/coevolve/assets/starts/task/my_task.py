"""A task: its problems, the prompt of each role, and the reward of each turn. Named in my_task.yaml."""

from collections.abc import Sequence

from coevolve import Case, Problem, Turn


class MyTask:
    """A task in which both agents write about a colour. Change the problems, the prompts and the reward."""

    # The columns of a problem that users of the trained team give: coevolve chat, coevolve serve.
    asks = ("colour",)

    # Keyword arguments are keys of the recipe: task: {name: my_task.py:MyTask, held_out: 3}
    def __init__(self, *, held_out: int = 2) -> None:
        colours = ("red", "blue", "green", "white", "black", "brown", "yellow", "grey")
        # A problem has a unique id and any data.
        problems = [Problem(colour, {"colour": colour}) for colour in colours]
        self.train, self.test = problems[:-held_out], problems[-held_out:]

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        """Return the prompt of this role. heard: the turns or notes that the play shows it.

        For a model with a chat template return a list of {"role": ..., "content": ...} instead of a text.
        """
        opening = f"The house was {p.data['colour']} and"
        said = " ".join(part.text if isinstance(part, Turn) else part for part in heard)
        return f"{said} {opening}" if said else opening

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return one number per turn of every case. A case is a problem with the turns that are scored together."""
        return [[self._worth(turn.text) for turn in case.turns] for case in cases]

    def _worth(self, text: str) -> float:
        """Return one point for a full stop, less a tenth per word: short, finished sentences are best."""
        return float("." in text) - 0.1 * len(text.split())
