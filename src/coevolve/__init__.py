"""Coevolve: fine-tune several language models together by reinforcement learning."""

from coevolve.algorithms import cory, ppo
from coevolve.cast import exchange, fixed, rotate
from coevolve.play import Team, do, score, together
from coevolve.policies import LocalEngine, LocalPolicy, LoraSpec, PolicySpec, ScriptedEngine, build_policies
from coevolve.protocols import chain
from coevolve.trainer import Trainer
from coevolve.types import Algorithm, Case, Episode, Message, Problem, Sampling, Turn

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Case",
    "Episode",
    "LocalEngine",
    "LocalPolicy",
    "LoraSpec",
    "Message",
    "PolicySpec",
    "Problem",
    "Sampling",
    "ScriptedEngine",
    "Team",
    "Trainer",
    "Turn",
    "build_policies",
    "chain",
    "cory",
    "do",
    "exchange",
    "fixed",
    "ppo",
    "rotate",
    "score",
    "together",
]
