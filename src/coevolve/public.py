"""The public names, which ``coevolve`` has as its own."""

from coevolve.algorithms import cory, grpo, magrpo, mareinforce, maremax, marloo, ppo, reinforce, rloo
from coevolve.cast import exchange, fixed, rotate
from coevolve.engines.local import LocalEngine
from coevolve.engines.scripted import ScriptedEngine
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.play import Roles, do, score, together
from coevolve.plays import best_of, chain, discussion, rounds, tree
from coevolve.rewards.function import batched
from coevolve.tasks.scoring import score_texts
from coevolve.teams.team import Team
from coevolve.trainer import Trainer
from coevolve.types import Algorithm, Case, Episode, Instruction, Joint, Message, Problem, Sampling, Turn

__all__ = [
    "Algorithm",
    "Case",
    "Episode",
    "Instruction",
    "Joint",
    "LocalEngine",
    "LocalLearner",
    "LoraSpec",
    "Message",
    "PolicySpec",
    "Problem",
    "Roles",
    "Sampling",
    "ScriptedEngine",
    "Team",
    "Trainer",
    "Turn",
    "batched",
    "best_of",
    "build_policies",
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
