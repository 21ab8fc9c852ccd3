"""Policies: language models with adapters and value heads, the engine that samples them, and a scripted stand-in."""

from coevolve.policies.build import build_policies
from coevolve.policies.engine import LocalEngine
from coevolve.policies.optim import plan_memory
from coevolve.policies.policy import LocalPolicy
from coevolve.policies.scripted import ScriptedEngine
from coevolve.policies.spec import LoraSpec, PolicySpec

__all__ = [
    "LocalEngine",
    "LocalPolicy",
    "LoraSpec",
    "PolicySpec",
    "ScriptedEngine",
    "build_policies",
    "plan_memory",
]
