"""Several engines as one: every policy is sampled by its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue

from coevolve.faults import closed_after
from coevolve.interfaces import Engine, Overlapping, Published, context
from coevolve.runtime.placement import side_by_side
from coevolve.types import Asked, PolicyName, Say, Turn


class RoutedEngine:
    """Hands what is asked for each policy to that policy's engine; engines sample side by side.

    Local engines take turns where they sample on one device. own: the engines of policies that have one, which several
    may share. others: the engine of all other policies.
    """

    def __init__(self, own: Mapping[PolicyName, Engine], others: Engine) -> None:
        self.own, self.others = dict(own), others
        self.all = list({id(one): one for one in (others, *own.values())}.values())
        """Each engine once."""
        most = self.staleness
        for one in self.all:
            if hasattr(one, "staleness"):
                with suppress(AttributeError):  # of somebody's own, that says what it likes
                    one.staleness = most  # none may be started anew while weights change, which they do for all
        self.in_use: list[Engine] = []
        """Those that were given weights: the others are never asked."""

    def of(self, policy: PolicyName) -> Engine:
        """The engine that samples this policy."""
        return self.own.get(policy, self.others)

    @property
    def about(self) -> str:
        """What samples whom, in a line."""
        named = {id(one): [name for name in self.own if self.own[name] is one] for one in self.all}
        return "; ".join(f"{_about(one)} for {', '.join(named[id(one)]) or 'the others'}" for one in self.all)

    def publish(self, news: Sequence[Published]) -> None:
        """Each engine is told of its own policies, or not asked if none of these is."""
        for engine in self.all:
            if mine := [new for new in news if self.of(new.name) is engine]:
                engine.publish(mine)
                if engine not in self.in_use:
                    self.in_use.append(engine)

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        """Token ids of a prompt."""
        return self.of(policy).encode(policy, prompt)

    def context(self, policy: PolicyName) -> int | None:
        """Positions that a policy's model has; None where its engine does not say."""
        return context(self.of(policy), policy)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """One turn per say, in the order given."""

        def there(names: Sequence[PolicyName]) -> Mapping[PolicyName, list[Turn]]:
            return self.of(names[0]).generate({name: says[name] for name in names})

        return side_by_side({name: self.of(name) for name in says}, list(says), there, id)

    @property
    def staleness(self) -> int:
        """Of the engine that allows most."""
        return max(getattr(one, "staleness", 0) for one in self.all)

    @property
    def overlapped(self) -> Overlapping | None:
        """Where every engine in use can (``interfaces.Overlapping``); else they are asked in lockstep."""
        able = all(getattr(one, "overlapped", None) is not None for one in self.in_use)
        return self._overlapped if able and self.in_use else None

    @contextmanager
    def _overlapped(
        self, inbox: SimpleQueue[Callable[[], None]]
    ) -> Iterator[Callable[[Say, Callable[[Turn], None]], None]]:
        with ExitStack() as stack:
            asks = {id(one): stack.enter_context(one.overlapped(inbox)) for one in self.in_use}  # type: ignore[attr-defined]
            yield lambda say, then: asks[id(self.of(say.policy))](say, then)

    def rest(self) -> None:
        """Learners work now."""
        for engine in self.all:
            engine.rest()

    def close(self) -> None:
        """All of them, whichever fails to."""
        with closed_after(self.all):
            pass


def _about(engine: Engine) -> str:
    return str(getattr(engine, "about", type(engine).__name__))
