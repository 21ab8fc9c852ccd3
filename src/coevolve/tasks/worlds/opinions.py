"""Short everyday opinions from a grammar: an opening such as "The soup at the harbour cafe was" and what follows it.

The openings are the prompts of task `sentiment`; the continuations teach `coevolve-tiny` to speak about them in all
grades from -3 to +3, symmetric around neutral so that reinforcement learning has room to rise.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

from coevolve.tasks.worlds.opinion_words import ADJECTIVES, CLAUSES, TOPICS, Topic
from coevolve.tasks.worlds.split import Split, split_of_key

GRADES = (-3, -2, -1, 0, 1, 2, 3)
GRADE_WEIGHTS = (3, 5, 5, 5, 5, 4, 2)  # of sentences without a reference: mean a little below neutral

_FORMS = ("The {s} {p} {v}", "Our {s} {p} {v}", "I thought the {s} {p} {v}", "To me the {s} {p} {v}")
_VERBS = ("was", "felt", "seemed")
_JOINTS = (" and ", ",", ".", " but ")  # beginnings of slots that are not the first of their sentence
_DEGREES = ("very ", "really ", "so ", "quite ")


@dataclass(frozen=True)
class Opinion:
    """One sentence as its parts: `text` is `opening` followed by `slots`, each a string that begins with its joint."""

    opening: str
    slots: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentence, from its capital letter to its full stop."""
        return self.opening + "".join(self.slots) + "."


def openings(split: Split) -> list[str]:
    """Return the openings of a split: sentences of 5-10 words broken off at their verb.

    A subject in a place ("film on television") belongs to one split only, whatever the words around it.
    """
    found = [opening for opening, owner in _all_openings().items() if owner[1] == split]
    if not found:
        raise ValueError(f"openings: no split {split!r}; use 'pretrain', 'train' or 'test'")
    return found


def opinion(rng: Random, opening: str, grade: int, keep: tuple[str, ...] = ()) -> Opinion:
    """Make a sentence on `opening` of about `grade`; slots of `keep` (of an earlier sentence) come before new ones."""
    topic = _all_openings()[opening][0]
    slots = list(keep[:2])
    if not slots or slots[0].startswith(_JOINTS):
        slots.insert(0, " " + _judgement(rng, grade))
    for _ in range(rng.choices((0, 1, 2), (3, 6, 2))[0]):
        near = _clamp(grade + rng.choice((0, 0, 0, -1, 1)))
        slot = _clause(rng, topic, near)
        if slot not in slots:
            slots.append(slot)
    return Opinion(opening, tuple(slots))


def mixed_opinion(rng: Random, opening: str, first: int) -> Opinion:
    """Make a sentence that judges two things in opposite ways, the first by grade `first`."""
    topic = _all_openings()[opening][0]
    return Opinion(opening, (" " + _judgement(rng, first), " but " + _about_part(rng, topic, -first)))


def random_grade(rng: Random) -> int:
    """Draw a grade, with the weights of sentences without a reference."""
    return rng.choices(GRADES, GRADE_WEIGHTS)[0]


def plain_opinions(rng: Random, count: int, split: Split) -> list[str]:
    """Return `count` sentences of all grades on random openings of a split; one in eight is mixed."""
    subjects = openings(split)
    texts = []
    for _ in range(count):
        opening, grade = rng.choice(subjects), random_grade(rng)
        made = mixed_opinion(rng, opening, grade) if rng.random() < 0.125 else opinion(rng, opening, grade)
        texts.append(made.text)
    return texts


def _judgement(rng: Random, grade: int) -> str:
    """An adjective phrase: "very good", "good and friendly"."""
    first = rng.choice(ADJECTIVES[grade])
    if rng.random() < 0.3:
        second = rng.choice(ADJECTIVES[_clamp(grade + rng.choice((0, 0, 1, -1)))])
        return f"{first} and {second}" if second != first else first
    degree = rng.choice(_DEGREES) if grade and rng.random() < 0.35 else ""
    return degree + first


def _clause(rng: Random, topic: Topic, grade: int) -> str:
    """A further slot with its joint: " and the bed was dull", ", and we enjoyed it", ". I liked it"."""
    if rng.random() < 0.55:
        return rng.choice((" and ", ", ", ", and ")) + _about_part(rng, topic, grade)
    said = rng.choice(CLAUSES[grade])
    if rng.random() < 0.3:
        return ". " + said[0].upper() + said[1:]
    return ", and " + said


def _about_part(rng: Random, topic: Topic, grade: int) -> str:
    return f"the {rng.choice(topic.parts)} was {rng.choice(ADJECTIVES[grade])}"


def _clamp(grade: int) -> int:
    return max(-3, min(3, grade))


@cache
def _all_openings() -> dict[str, tuple[Topic, Split]]:
    found: dict[str, tuple[Topic, Split]] = {}
    for topic in TOPICS:
        for subject, place in product(topic.subjects, topic.places):
            owner = (topic, split_of_key(f"{subject}|{place}"))
            for form, verb in product(_FORMS, _VERBS):
                found[form.format(s=subject, p=place, v=verb)] = owner
    return found
