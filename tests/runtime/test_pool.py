"""Sampling in processes gives what sampling here gives, through updates and checkpoints, and failures are told."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker, util
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import make_batch, make_rule, make_says, make_targets, ragged
from toy import toy, without_times

from coevolve.algorithms.magrpo import magrpo
from coevolve.engines import local as engine
from coevolve.engines.local import LocalEngine
from coevolve.faults import ShortageError
from coevolve.learners import build as building
from coevolve.learners.build import build_policies
from coevolve.learners.local import LocalLearner
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.plays import rounds
from coevolve.runtime.beside import Beside
from coevolve.runtime.placement import side_by_side
from coevolve.runtime.pool import Failure, Job, JobError, Pool, Worker
from coevolve.types import Sampling, Say, Turn


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "cores", lambda: 2)
        yield


@dataclass
class Pair:
    """The same policies behind two engines."""

    here: LocalEngine
    away: LocalEngine

    def same(self, says: dict[str, list[Say]]) -> dict[str, list[Turn]]:
        """Both engines' turns, which are equal to the bit."""
        turns = self.away.generate(says)
        assert turns == self.here.generate(says)
        return dict(turns)


@pytest.fixture(scope="module")
def pair(micro_model: str, micro_gpt2: str) -> Iterator[Pair]:
    """A full copy, and two adapters on another base that is also somebody's own: three bases in two processes."""
    lora = LoraSpec(rank=2)
    specs = {
        "full": PolicySpec(micro_model, learning_rate=1e-2),
        "ann": PolicySpec(micro_gpt2, weights="lora", lora=lora, learning_rate=1e-2),
        "bob": PolicySpec(micro_gpt2, weights="lora", lora=lora, learning_rate=1e-2),
        "own": PolicySpec(micro_gpt2, learning_rate=1e-2, dtype="bfloat16"),
    }
    policies = build_policies(specs, reference=True, critic=True, steps=10, seed=0, workers=True)
    here = {}
    for name, policy in policies.items():
        here[name] = copy.copy(policy)
        here[name].pool = None
    found = Pair(LocalEngine(here), LocalEngine(policies))
    yield found
    pool_of(found).close()


def pool_of(pair: Pair) -> Pool:
    pool = pair.away.policies["full"].pool
    assert pool is not None
    return pool


def says(*names: str, sampling: Sampling = Sampling(9)) -> dict[str, list[Say]]:
    return {name: make_says(ragged(12, seed=i), sampling, name) for i, name in enumerate(names)}


@pytest.mark.parametrize(
    "sampling", [Sampling(9), Sampling(9, temperature=0.0), Sampling(9, top_k=5, repetition_penalty=1.3)]
)
def test_the_turns_are_the_same(pair: Pair, sampling: Sampling) -> None:
    pair.same(says("full", "ann", "bob", "own", sampling=sampling))


def test_processes_start_only_if_there_is_work_for_two(micro_model: str, micro_gpt2: str) -> None:
    models = {"full": micro_model, "ann": micro_gpt2, "bob": micro_gpt2}
    specs = {n: PolicySpec(m, weights="full" if n == "full" else "lora") for n, m in models.items()}
    policies = build_policies(specs, reference=False, critic=False, steps=10, seed=0, workers=True)
    idle = LocalEngine(policies)
    idle.generate(says("full"))
    idle.generate(says("ann", "bob"))
    idle.generate({**says("full"), "ann": []})
    pool = policies["full"].pool
    assert pool is not None and pool._running == []


def test_without_a_second_core_there_are_no_processes(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "cores", lambda: 1)
    how: Any = {"reference": False, "critic": False, "steps": 10, "seed": 0, "workers": True}
    assert build_policies({"a": PolicySpec(micro_model)}, **how)["a"].pool is None


def test_an_error_names_who_had_rows_in_that_process() -> None:
    worker = Worker.__new__(Worker)
    worker.connection, theirs = multiprocessing.Pipe()
    asked = {"ann": [], **says("bob"), "cid": []}
    job = LocalEngine({})._job(asked, {name: range(len(some)) for name, some in asked.items()})
    worker.names = job.names
    for error, kind in (
        (IndexError("7"), JobError),
        (SystemExit(0), JobError),
        (MemoryError(), ShortageError),
        (PermissionError(13, "no"), OSError),
    ):
        theirs.send_bytes(pickle.dumps((None, Failure.of(error))))
        with pytest.raises(kind, match=f"the process that worked for bob failed: .*{type(error).__name__}") as told:
            worker.answer()
        assert "\n" not in str(told.value)


def test_rows_in_parts() -> None:
    def parts(rows: dict[str, int], most: int) -> list[dict[str, list[int]]]:
        return [{name: list(some) for name, some in part.items()} for part in engine._parts(rows, most)]

    assert parts({"a": 63}, 4) == [{"a": [*range(63)]}]
    assert parts({"a": 65}, 4) == [{"a": [*range(32)]}, {"a": [*range(32, 65)]}]
    assert parts({"a": 40, "b": 0, "c": 50}, 4) == [
        {"a": [*range(40)], "b": [], "c": [*range(5)]},
        {"a": [], "b": [], "c": [*range(5, 50)]},
    ]
    assert parts({"a": 1000}, 0) == [{"a": [*range(1000)]}]
    assert parts({}, 2) == [{}]


def test_rows_of_one_base_are_split(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row as it is alone; but for rounding, since each process has a batch of its own."""
    asked = {
        "ann": make_says(ragged(40, seed=1), Sampling(9), "ann"),
        "bob": make_says(ragged(41, seed=2), Sampling(9), "bob"),
    }
    given: list[dict[str, int]] = []

    honest = Pool.__call__

    def watched(self: Pool, jobs: Any) -> Any:
        given.extend({name: len(some) for name, some in job.given[0].items()} for job in jobs)
        return honest(self, jobs)

    monkeypatch.setattr(Pool, "__call__", watched)
    found, wanted = pair.away.generate(asked), pair.here.generate(asked)
    assert given == [{"ann": 40, "bob": 0}, {"ann": 0, "bob": 41}]
    for name, turns in wanted.items():
        assert [turn.action_ids for turn in found[name]] == [turn.action_ids for turn in turns]
        for ours, theirs in zip(found[name], turns, strict=True):
            assert ours.logps == pytest.approx(theirs.logps, abs=1e-5)


def learn(policies: dict[str, LocalLearner], step: int) -> None:
    for i, policy in enumerate(policies.values()):
        batch = policy.describe(make_batch(8, seed=i))
        policy.update(batch, make_targets(batch, i), make_rule(), step)


def test_processes_see_updates_and_restored_weights(pair: Pair, tmp_path: Path) -> None:
    policies: Any = pair.away.policies
    asked = says("full", "ann", "bob", "own")
    before = pair.same(asked)
    for name, policy in policies.items():
        policy.save(tmp_path / name)
    state = {name: policy.training_state() for name, policy in policies.items()}
    learn(policies, 0)
    after = pair.same(asked)
    assert all(before[name] != after[name] for name in asked)
    for name, policy in policies.items():
        policy.load(tmp_path / name, state[name])
    assert pair.same(asked) == before
    memory = pool_of(pair)._memory
    assert memory is not None
    weights = [(t, view) for t, view in zip(memory.tensors, memory.views, strict=True) if not t.is_meta]
    assert len(weights) < len(memory.views)  # the others are for gradients
    assert all(t.data_ptr() == view.data_ptr() for t, view in weights)


def test_weights_that_somebody_moved_are_found(pair: Pair) -> None:
    asked = says("full", "own")
    before = pair.same(asked)
    (weight, *_) = pair.away.policies["full"].weights.parameters()
    kept, weight.data = weight.data, weight.data * 0.5
    assert pair.same(asked)["full"] != before["full"]
    weight.data = kept
    with torch.no_grad():
        weight.mul_(2.0)  # what was moved back in is the memory, with the new values
    assert pair.same(asked) == before


def test_a_failure_and_a_death_are_told_and_a_later_call_starts_anew(pair: Pair) -> None:
    asked = says("full", "own")
    before = pair.same(asked)
    bad = {**asked, "own": make_says([[1 << 20]], Sampling(4), "own")}
    with pytest.raises(JobError, match=r"the process that worked for own failed: IndexError"):
        pair.away.generate(bad)
    assert pair.same(asked) == before
    workers = pool_of(pair)
    process = workers._running[0].process
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with pytest.raises(ShortageError, match="for full ended with exit code -9"):
        pair.away.generate(asked)
    assert workers._running == []


def test_a_death_before_the_state_is_read_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that is killed while it imports, when memory is scarcest; a large model's state fills a pipe."""
    pool, move, spawn = pool_of(pair), pool_of(pair)._move_weights, util.spawnv_passfds
    job = Job(["full"], works, (0.0, b""))
    pool.close()

    def moved() -> None:
        move()
        pool._state += b"x" * (1 << 20)  # behind what is unpickled

    def killed(*given: Any) -> int:
        pid = spawn(*given)
        os.kill(pid, signal.SIGKILL)
        return pid

    monkeypatch.setattr(pool, "_move_weights", moved)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: SpawnContext())  # not the tests' own
    resource_tracker.ensure_running()
    monkeypatch.setattr(util, "spawnv_passfds", killed)
    asked = Beside(lambda: pool([job]))
    with pytest.raises(ShortageError, match=r"works for full ended with exit code -9 \(killed, perhaps for want of"):
        asked.found(60, "the pool")
    monkeypatch.setattr(util, "spawnv_passfds", spawn)
    assert pool([job]) == ["done"]


@pytest.mark.parametrize("job", [0, 1 << 22])  # bytes: in one piece, and more than a pipe holds
@pytest.mark.parametrize("shared", [False, True])
def test_a_process_that_stands_still_is_told(
    pair: Pair, shared: bool, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that computes is waited for, however long; one that was stopped is not, and leaves nothing behind."""
    monkeypatch.setattr("coevolve.runtime.pool._LOOK", 0.1)
    monkeypatch.setattr("coevolve.runtime.pool._LOOKS", 5)
    pool, busy = pool_of(pair), Job(["full"], works, (1.5, b"x" * job))

    def asked(busy: Job) -> Any:
        if not shared:
            return pool([busy])
        with pool.shared() as mine:
            return mine([busy])

    assert asked(busy) == ["done"]
    (first, *_) = pool._running
    os.kill(first.process.pid or 0, signal.SIGSTOP)
    with pytest.raises(ShortageError, match=r"works for full, has not answered, and used no processor time for 0 s"):
        asked(busy)
    assert pool._running == [] and first.process.exitcode == -signal.SIGKILL
    assert asked(busy) == ["done"]


def test_a_process_that_stops_while_it_answers_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an answer of which a part has come: who reads the rest in one go would wait for ever."""
    monkeypatch.setattr("coevolve.runtime.pool._LOOK", 0.1)
    monkeypatch.setattr("coevolve.runtime.pool._LOOKS", 5)
    pool = pool_of(pair)
    assert pool([Job(["full"], works, (0.0, b""))]) == ["done"]
    asked = Beside(lambda: pool([Job(["full"], stops_while_it_answers, ())]))
    with pytest.raises(ShortageError, match=r"works for full, has not answered, and used no processor time for 0 s"):
        asked.found(60, "the pool")
    assert pool._running == []


def stops_while_it_answers(state: Any) -> bytes:
    def begin(connection: Any, message: Any) -> None:
        os.write(connection.fileno(), bytes(message)[:100])
        os.kill(os.getpid(), signal.SIGSTOP)

    multiprocessing.connection.Connection._send = begin  # type: ignore[attr-defined, method-assign]
    return bytes(1 << 20)


def works(state: Any, seconds: float, more: bytes) -> str:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "done"


def echo(number: int) -> Job:
    """A job whose process gives the number back."""
    return Job(["a"], partial(dataclasses.replace, outputs={"n": number}), ())


def threads_there(state: Any) -> int:
    return torch.get_num_threads()


def test_processes_compute_with_their_share_of_the_threads() -> None:
    torch.set_num_threads(6)
    pool = Pool(2)
    assert pool([Job(["a"], threads_there, ())] * 2) == [3, 3]
    pool.close()


def test_two_who_share_processes_get_their_own_answers() -> None:
    """Of one to three jobs, some of which fail, and whose process is another's, too."""
    pool, wrong = Pool(3), list[Any]()

    def ask_often(base: int) -> None:
        with pool.shared() as share:
            for number in range(base, base + 60, 3):
                some = [echo(number + i) for i in range(1 + number % 3)]
                if number % 5 == 0:
                    with pytest.raises(JobError, match="failed: TypeError"):
                        share([*some[:-1], Job(["a"], divmod, (1, 2, 3))])
                elif (found := [there.outputs["n"] for there in share(some)]) != [number + i for i in range(len(some))]:
                    wrong.append((number, found))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(ask_often, (0, 1000, 2001)))
    assert wrong == [] and len(pool._running) == 3
    pool.close()


def test_who_waits_for_a_process_holds_none_that_somebody_waits_for() -> None:
    pool = Pool(2)
    pool([echo(1), echo(2)])
    first, second = pool._running
    asked = list[tuple[bool, bool]]()

    class OfAShare:
        """The second one's lock, which a share has when it is asked for, and lets go once it has the first one."""

        inner = second.lock

        def acquire(self, blocking: bool = True) -> bool:
            asked.append((blocking, first.lock.locked()))
            return self.inner.acquire() if blocking or len(asked) > 1 else False

        def release(self) -> None:
            self.inner.release()

    second.lock = OfAShare()  # type: ignore[assignment]
    assert [there.outputs["n"] for there in pool([echo(number) for number in range(4)])] == [0, 1, 2, 3]
    assert asked[0] == (False, True) and (True, True) not in asked
    pool.close()


def test_no_more_processes_start_than_have_work() -> None:
    pool = Pool(16)
    with pool.shared() as first, pool.shared() as second:
        assert [share([echo(1)])[0].outputs for share in (first, second)] == [{"n": 1}] * 2
        assert len({share.first for share in (first, second)}) == 2 == len(pool._running)
    pool.close()


def test_who_waits_while_processes_are_lost_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others still have gradients in the memory of those that were lost, so no new ones begin beside them."""
    pool, waiting = Pool(2), threading.Event()
    seat = pool._seats.get

    def soon() -> int:
        waiting.set()
        return seat()

    def wait_for_a_seat() -> None:
        with pool.shared() as share:
            share([echo(1)])

    with ThreadPoolExecutor(1) as threads:
        with pool.shared() as first, pool.shared():
            first([echo(1)])
            monkeypatch.setattr(pool._seats, "get", soon)
            buffers, third = pool.buffers, threads.submit(wait_for_a_seat)
            assert waiting.wait(20)
            pool._lost(pool._running, ShortageError("it died"))
        with pytest.raises(ShortageError, match="it died"):
            third.result(20)
    assert pool.buffers is buffers and pool._running == []
    with pool.shared() as share:
        assert share([echo(3)])[0].outputs == {"n": 3}
    pool.close()


def test_a_death_beside_others_hangs_nobody(pair: Pair) -> None:
    """One learner's processes die while another one has some and wants more: it is told so, and does not wait."""
    pool, job = pool_of(pair), Job(["full"], id, ())
    with pool.shared() as others:
        others([job])
        (first, *_) = pool._running
        os.kill(first.process.pid or 0, signal.SIGKILL)
        first.process.join()
        with pytest.raises(ShortageError, match="for full ended with exit code -9"):
            others([job])
    with pool.shared() as mine:
        pool._lost(pool._running, ShortageError("another learner's process died"))
        with pytest.raises(ShortageError, match="another learner's process died"):
            mine([job])


def test_training_is_the_same(micro_model: str) -> None:
    lines = []
    for workers in (False, True):
        trainer = toy(micro_model, play=rounds(), members=2, algorithm=magrpo(), workers=workers, steps=3)
        pool = trainer.policies["ann"].pool
        assert (pool is not None) == workers
        lines.append([without_times(trainer.step(i)) for i in range(3)])
        if pool is not None:
            assert pool._running
            pool.close()
    assert lines[0] == lines[1]


SCRIPT = """
import sys
from coevolve import LocalEngine, PolicySpec, build_policies
from coevolve.learners import build
from coevolve.types import Problem, Sampling, Say

print("imported")
build.cores = lambda: 2
specs = {"a": PolicySpec(sys.argv[1]), "b": PolicySpec(sys.argv[1])}
policies = build_policies(specs, reference=False, critic=False, steps=1, seed=0, workers=True)
LocalEngine(policies).generate({n: [Say("r", n, Problem("p"), 0, 0, [5, 6], Sampling(3), 7)] for n in specs})
print(*[worker.process.pid for worker in policies["a"].pool._running])
"""


def test_a_script_needs_no_guard_and_leaves_no_process(micro_model: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), micro_model], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first, pids = done.stdout.splitlines()
    assert first == "imported"
    assert len(pids.split()) == 2
    for pid in pids.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def apart(trainer: Any) -> Any:
    """The trainer with its second policy on another device, or what passes for one."""
    trainer.policies["bob"].device = torch.device("cpu", 0)
    assert trainer.policies["ann"].device != trainer.policies["bob"].device
    return trainer


def test_policies_on_different_devices_learn_side_by_side(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        [without_times(trainer.step(i)) for i in range(3)] for trainer in (toy(micro_model), apart(toy(micro_model)))
    ]
    assert lines[0] == lines[1]
    assert list(lines[0][0]) == list(lines[1][0])
    meet = threading.Barrier(2, timeout=120)  # passed only by two at once
    update = LocalLearner.update

    def meeting(self: LocalLearner, *args: Any) -> Any:
        meet.wait()
        return update(self, *args)

    monkeypatch.setattr(LocalLearner, "update", meeting)
    line = apart(toy(micro_model)).step(0)
    assert line["time/update"] <= line["time/step"]


def test_an_error_beside_others_is_raised(micro_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    update = LocalLearner.update

    def failing(self: LocalLearner, *args: Any) -> Any:
        if self.name == "bob":
            raise ValueError("policy 'bob' has diverged")
        return update(self, *args)

    monkeypatch.setattr(LocalLearner, "update", failing)
    with pytest.raises(ValueError, match="policy 'bob' has diverged"):
        apart(toy(micro_model)).step(0)


def test_side_by_side_keeps_order(micro_model: str) -> None:
    trainer = apart(toy(micro_model))
    names = ["bob", "ann"]

    def place(learner: LocalLearner) -> object:
        return learner.place

    found = side_by_side(trainer.policies, names, lambda there: dict.fromkeys(there, there), place)
    assert found == {"bob": ["bob"], "ann": ["ann"]}
    assert list(found) == names
    assert side_by_side(trainer.policies, [], lambda there: {}, place) == {}
