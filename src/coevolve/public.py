"""The public names, which ``coevolve`` has as its own."""

from coevolve.algorithms import cory, grpo, magrpo, mareinforce, maremax, marloo, ppo, reinforce, rloo
from coevolve.algorithms.advantages import per_policy
from coevolve.cast import exchange, fixed, rotate
from coevolve.credit import by_episode
from coevolve.engines.base import BaseEngine, Sample
from coevolve.engines.local import LocalEngine
from coevolve.engines.scripted import ScriptedEngine
from coevolve.interfaces import Engine, Learner, Published
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.play import Roles, do, score, together
from coevolve.plays import best_of, chain, discussion, rounds, tree
from coevolve.rewards.function import batched
from coevolve.tasks.scoring import score_texts
from coevolve.teams.team import Team
from coevolve.trainer import Trainer
from coevolve.types import (
    Algorithm,
    Batch,
    Case,
    Episode,
    Instruction,
    Joint,
    Lesson,
    Message,
    Objective,
    Outputs,
    Problem,
    Row,
    Sampling,
    Targets,
    Turn,
)

__all__ = [
    "Algorithm",
    "BaseEngine",
    "Batch",
    "Case",
    "Engine",
    "Episode",
    "Instruction",
    "Joint",
    "Learner",
    "Lesson",
    "LocalEngine",
    "LocalLearner",
    "LoraSpec",
    "Message",
    "Objective",
    "Outputs",
    "PolicySpec",
    "Problem",
    "Published",
    "Roles",
    "Row",
    "Sample",
    "Sampling",
    "ScriptedEngine",
    "Targets",
    "Team",
    "Trainer",
    "Turn",
    "batched",
    "best_of",
    "build_policies",
    "by_episode",
    "chain",
    "cory",
    "discussion",
    "do",
    "exchange",
    "fixed",
    "grpo",
    "magrpo",
    "mareinforce",
    "maremax",
    "marloo",
    "per_policy",
    "ppo",
    "reinforce",
    "rloo",
    "rotate",
    "rounds",
    "score",
    "score_texts",
    "together",
    "tree",
]
