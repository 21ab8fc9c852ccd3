"""How many held-out problems are played where nobody says: all, of a task that has fewer. Imports nothing, since the
help of commands shows these numbers."""

EVALUATED = 256
"""By an evaluation."""
DIAGNOSED = 64
"""By a diagnosis, under each condition."""
ADVISED = 32
"""By `coevolve advise`."""
