"""Student's t distribution: how many standard errors a difference needs if the error is estimated from few values.

An error of few values is itself uncertain: where nothing moved, the difference of two means of two values each is two
of its standard errors or more in one case of five. The limits here are exceeded in one of twenty, whatever the number
of values, if these are normal, independent and of one variance.
"""

from __future__ import annotations

_LIMITS = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles for 1 to 30 degrees of freedom."""

_MANY = 2.0  # with more: between 2.04 and 1.96


def limit(freedom: int) -> float:
    """Return the number of standard errors that chance exceeds in one of twenty cases. freedom: degrees of freedom, the
    number of values less that of the means."""
    return _LIMITS[freedom - 1] if freedom <= len(_LIMITS) else _MANY
