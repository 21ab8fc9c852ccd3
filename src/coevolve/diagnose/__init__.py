"""Is this a team? A trained team plays held-out problems in altered ways, each beside the team as it was trained.

Random numbers are functions of names, so all conditions share the problems and the noise, and differences are paired.
Turns are sampled as in training, at the longest length. Every number is a row of its own in ``diagnostics.json``:

    kind        setting                                     role, policy
    team        trained (the base line), start              all
    alone       alone: on the bare prompt, hearing nobody   the first role, each policy
    swap        which policy plays which role               all
    messages    blank, shuffled, own, notes blank           who hears it
    influence   redrawn, silent                             whose turns they are
    cross-play  self, cross, mean                           who comes ``from`` another team than the others (``by``)

    reward     the return: what the interaction came to, the mean over the agents; se: its standard error; n: units
    difference from the base line (cross, mean: from the mean of both self-plays); low, high: its interval
    effect, share (redrawn): total effect on the return, and part of the sum of all agents' effects; _low, _high
    reason     instead of numbers: why the task refuses this condition

``paired`` says what units and intervals are. A kind without rows does not apply to the run.
"""

from coevolve.diagnose.run import diagnose

__all__ = ["diagnose"]
