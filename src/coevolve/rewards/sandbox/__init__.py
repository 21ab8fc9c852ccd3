"""A sandbox that runs untrusted code with tests where it can do no harm (docs/sandbox.md)."""

from coevolve.rewards.sandbox.box import Sandbox
from coevolve.rewards.sandbox.split import count_tests
from coevolve.rewards.sandbox.types import Kind, Program, Verdict

__all__ = ["Kind", "Program", "Sandbox", "Verdict", "count_tests"]
