"""Sweeps: many runs of one recipe, seeds times settings, several at once, resumable (``coevolve sweep``)."""

from coevolve.sweep.run import plan, sweep

__all__ = ["plan", "sweep"]
