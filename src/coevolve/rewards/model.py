"""A reward model: the score of a text-classification checkpoint for each turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from coevolve.rewards.templates import SAID, Filled
from coevolve.rewards.waiting import Paid
from coevolve.settings import Count
from coevolve.types import Case, Problem, Role

if TYPE_CHECKING:
    from coevolve.rewards.classifier import Classifier


class ModelReward:
    """A reward that pays each turn the raw logit of one class of a text-classification checkpoint.

    model: anything that ``load_classifier`` finds: a folder, a hub name. text: the model's input for each turn, a
    template (see ``Filled``): "{said}", or "{prompt}{said}" for a model of pairs, or "{short} {long}" for a team,
    all of whose turns then get the same reward. label: the class, as named in the checkpoint's id2label; None is its
    only class, as in reward models, or the positive one. device, batch_size: as in ``rewards.classifier``.
    """

    tells = False

    def __init__(
        self,
        *,
        model: str,
        text: str = f"{{{SAID}}}",
        label: str | None = None,
        device: str = "auto",
        batch_size: Count = 64,
    ) -> None:
        self.name = "classifier"
        self._text = Filled(text, "task.reward, classifier: text")
        self._settings = (model, device, batch_size, label)

    @cached_property
    def _model(self) -> Classifier:
        from coevolve.rewards.classifier import Classifier  # here, because a recipe is checked without torch

        return Classifier(*self._settings)

    def check(self, p: Problem, roles: Sequence[Role]) -> None:
        self._text.check(p, roles)

    def start(self, cases: Sequence[Case]) -> list[Paid]:
        """Return the logits of each case's turns. Each distinct text is scored once."""
        texts = [self._text.texts(case) for case in cases]
        distinct = list(dict.fromkeys(text for one in texts for text in one))
        logits = dict(zip(distinct, self._model(distinct), strict=True))
        return [Paid([logits[text] for text in one]) for one in texts]
