"""A task: what the problems are, what each role is told, and what its turn is worth. Named by my_task.yaml."""

from collections.abc import Sequence

from coevolve import Case, Problem, Turn


class MyTask:
    """Both agents write about a colour. To change: the problems, the prompts, and what is paid."""

    # What a problem is made of, for who plays the trained team: coevolve chat, coevolve serve.
    asks = ("colour",)

    # Keyword arguments are keys of the recipe: task: {name: my_task.py:MyTask, held_out: 3}
    def __init__(self, *, held_out: int = 2) -> None:
        colours = ("red", "blue", "green", "white", "black", "brown", "yellow", "grey")
        # A problem is an id, which no other one has, and whatever data you like.
        problems = [Problem(colour, {"colour": colour}) for colour in colours]
        self.train, self.test = problems[:-held_out], problems[-held_out:]

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        """What this role is given to continue. heard: the turns, or notes, that the play lets it hear.

        For a model with a chat template return a list of {"role": ..., "content": ...} instead of a text.
        """
        opening = f"The house was {p.data['colour']} and"
        said = " ".join(part.text if isinstance(part, Turn) else part for part in heard)
        return f"{said} {opening}" if said else opening

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """One number per turn of every case. A case is a problem with the turns that are judged together."""
        return [[self._worth(turn.text) for turn in case.turns] for case in cases]

    def _worth(self, text: str) -> float:
        """One point for a full stop, and a tenth less for every word: finish your sentence, and soon."""
        return float("." in text) - 0.1 * len(text.split())
