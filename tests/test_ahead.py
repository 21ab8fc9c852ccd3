"""Which step's episodes are handed out, and how often each is sampled, without a model."""

import pytest

from coevolve import magrpo
from coevolve.ahead import Ahead, staleness_of
from coevolve.checks import check_corrected
from coevolve.measure import Clock


class Sampled:
    """Says of which step it was asked, and takes as many seconds."""

    def __init__(self):
        self.asked = []

    def __call__(self, i, clock):
        self.asked.append(i)
        clock.seconds["generate"] = float(i)
        return [i]


def ahead(staleness=1):
    sample = Sampled()
    return Ahead(sample, staleness), sample.asked


def test_what_was_sampled_ahead_is_handed_out_once_with_the_time_it_took():
    found, asked = ahead()
    with found.sampling(5):
        pass
    assert asked == [5]
    clock = Clock()
    clock.seconds["load"] = 2.0
    assert found.episodes(5, clock) == [5]
    assert clock.seconds == {"load": 2.0, "generate": 5.0}
    assert asked == [5]
    assert found.episodes(5, Clock()) == [5]
    assert asked == [5, 5]


@pytest.mark.parametrize("other", [4, 6])
def test_whoever_takes_another_step_gets_that_one_and_nothing_older_after_it(other):
    found, asked = ahead()
    with found.sampling(5):
        pass
    assert found.episodes(other, Clock()) == [other]
    assert found.episodes(5, Clock()) == [5]
    assert asked == [5, other, 5]


def test_nothing_is_sampled_behind_the_last_step_nor_without_staleness():
    for staleness, step in ((1, None), (0, 5)):
        found, asked = ahead(staleness)
        with found.sampling(step):
            pass
        assert asked == []
    found, asked = ahead()
    with found.sampling(0):  # the first step is one, too
        pass
    assert asked == [0]


def test_what_is_forgotten_is_sampled_again():
    found, asked = ahead()
    with found.sampling(5):
        pass
    found.forget()
    assert found.episodes(5, Clock()) == [5]
    assert asked == [5, 5]


def test_how_old_turns_of_an_engine_may_be():
    class Engine:
        staleness = 1

    class Server(Engine):
        overlapped = print

    assert (staleness_of(object()), staleness_of(Server())) == (0, 1)
    with pytest.raises(ValueError, match="the engine's staleness is 1, and some policy is sampled in this process"):
        staleness_of(Engine())


def test_only_older_turns_want_a_correction():
    check_corrected(0, magrpo())
    check_corrected(1, magrpo(mismatch="icepop"))
    with pytest.raises(ValueError, match=r"set algorithm\.mismatch"):
        check_corrected(1, magrpo())
