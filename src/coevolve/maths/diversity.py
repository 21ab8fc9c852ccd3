"""distinct-n, a metric of diversity: it shows a policy that repeats itself earlier than the reward does."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def distinct(sequences: Sequence[Sequence[Hashable]], n: int) -> float:
    """Return different n-grams / all n-grams over all sequences together (arXiv 1510.03055, section 5.2).

    NaN if no sequence is n long. It falls with the number of sequences, so compare equal batches only.
    """
    assert n >= 1, n
    grams = [tuple(s[i : i + n]) for s in sequences for i in range(len(s) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")
