"""How policies learn: what a recipe's ``learner`` may name besides a file's. Ours are made by ``learners.build``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coevolve.interfaces import Learner

LEARNERS: Mapping[str, Callable[..., Learner]] = {}
