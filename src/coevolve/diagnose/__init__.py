"""Diagnosis of a trained team: it plays held-out problems in altered ways, each compared with the team as trained.

Random numbers are functions of names, so all conditions share the problems and the noise, and differences are paired.
Turns are sampled as in training, at the longest length. Every result is a row of its own in ``diagnostics.json``:

    kind        setting                                     role, policy
    team        trained (the base line), start              all
    alone       alone: on the bare prompt, without others   the first role, each policy
    swap        which policy plays which role               all
    messages    blank, shuffled, own, notes blank           the role that hears it
    influence   redrawn, silent                             the role of the changed turns
    cross-play  self, cross, mean                           the role ``from`` another team than the others (``by``)

    reward     the return of an episode, the mean over the agents; se: its standard error; n: number of units
    difference from the base line (cross, mean: from the mean of both self-plays); low, high: its interval
    effect, share (redrawn): total effect on the return, and part of the sum of all agents' effects; _low, _high
    reason     why the task refuses this condition, in place of numbers

``paired`` explains units and intervals. A kind without rows does not apply to the run.
"""

from coevolve.diagnose.run import diagnose

__all__ = ["diagnose"]
