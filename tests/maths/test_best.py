"""The best of k samples."""

from itertools import combinations

import pytest

from coevolve.evaluate import best_at


def test_by_hand() -> None:
    # Of {1, 2, 5}: pairs (1, 2), (1, 5), (2, 5) have maxima 2, 5, 5.
    assert best_at([5, 1, 2], 2) == 4.0
    assert best_at([5, 1, 2], 1) == pytest.approx(8 / 3)
    assert best_at([5, 1, 2], 3) == 5.0
    assert best_at([100.0] * 1024, 512) == pytest.approx(100)  # of more draws than a float can count
    assert best_at([1] * 1100, 512) == pytest.approx(1)
    # Three of ten pass; of the 45 pairs 21 hold none of them: 24 / 45.
    assert best_at([1] * 3 + [0] * 7, 2) == pytest.approx(24 / 45)
    assert best_at([0, 0, 0], 2) == 0.0


def test_it_is_the_mean_over_all_draws() -> None:
    values = [0.3, -1.0, 2.0, 0.3, 0.9, 4.0]
    for k in range(1, 7):
        drawn = [max(some) for some in combinations(values, k)]
        assert best_at(values, k) == pytest.approx(sum(drawn) / len(drawn))


def test_many_samples_do_not_overflow() -> None:
    assert best_at([0.0] * 900 + [1.0] * 100, 500) == pytest.approx(1.0)


@pytest.mark.parametrize("k", [0, 4])
def test_more_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match=f"best of {k} of 3"):
        best_at([1, 2, 3], k)
