"""Trackers get the numbers and the dialogues: TensorBoard for real, the others by stand-ins, as they want accounts."""

import subprocess
import sys
from contextlib import suppress

import pytest
from toy import toy

from coevolve.report.trackers import _COLUMNS, TRACKERS, trackers

SAMPLE = {
    "problem": "p0",
    "data": {"query": "The soup"},
    "turns": [
        {"role": "pioneer", "policy": "ann", "heard": [], "text": "so | so", "reward": 1.0},
        {"role": "observer", "policy": "bob", "heard": [0, "a note"], "text": "good", "reward": None},
    ],
}
ROWS = [
    [2, "p0", "query: The soup", 0, "pioneer", "ann", "", "so | so", 1.0],
    [2, "p0", "query: The soup", 1, "observer", "bob", "turn 0\na note", "good", None],
]

SESSION = """
calls = []
class Table:
    def __init__(self, columns, data): self.all = columns, data
def init(**k): calls.append(k); return __import__(__name__)
def log(values, step): calls.append((step, values))
def finish(): calls.append('finish')
"""

MLFLOW = """
from contextlib import contextmanager
from types import SimpleNamespace
calls, runs = [], {}
def set_experiment(name): calls.append(name)
def search_runs(experiment_names, filter_string, output_format):
    return [SimpleNamespace(info=SimpleNamespace(run_id=name)) for name in runs if repr(runs[name]) in filter_string]
@contextmanager
def start_run(run_id=None, run_name=None, tags=None):
    if run_id is None: runs["made-by-the-server"] = tags["coevolve_id"]
    calls.append(run_id or run_name)
    yield
    calls.append('finish')
def log_dict(values, file): calls.append((file, values))
def log_metrics(values, step): calls.append((step, values))
def log_table(data, file): calls.append((file, data))
"""


class Far:
    """How far a training is."""

    global_step = 2


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(name, script): the module that ``import name`` gets."""

    def made(name, script):
        (tmp_path / f"{name}.py").write_text(script)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return made


def send(names, run, step):
    with trackers(names, run, {"seed": 1}) as opened:
        for one in opened:
            one.on_log(None, Far, None, logs={"step": step, "reward": float(step), "cast": {}}, trainer=None)
            one.on_evaluate(None, Far, None, metrics={}, samples=[SAMPLE], trainer=None)


def test_what_is_trained_again_replaces_what_tensorboard_had(stand_in, monkeypatch, tmp_path):
    """As after lost ranks, within one training."""
    made = stand_in(
        "board",
        "calls = []\nclass SummaryWriter:\n    def __init__(self, folder, purge_step): calls.append(purge_step)\n"
        "    def add_scalar(self, key, value, step): calls.append((key, step))\n"
        "    def add_text(self, *more): pass\n    def close(self): calls.append('close')\n",
    )
    monkeypatch.setitem(TRACKERS, "tensorboard", ("board", TRACKERS["tensorboard"][1]))
    with trackers(["tensorboard"], tmp_path / "run", {}) as [one]:
        for step in (0, 1, 2, 1, 2, 2):
            one.on_log(None, Far, None, logs={"step": step, "reward": 1.0}, trainer=None)
    numbers = [(call if isinstance(call, int | str) else call[1]) for call in made.calls]
    assert made.calls[:2] == [0, ("reward", 0)]
    assert numbers == [0, 0, 1, 2, "close", 1, 1, 2, "close", 2, 2, "close"]


def test_tensorboard_gets_the_numbers_of_each_step_and_the_dialogues(micro_model, tmp_path):
    """As its pages read them, and after a run that was cut off behind step 3 and went on from its checkpoint of 2."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")

    class Cut:
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 3:
                raise ValueError("cut")

    for cut in (True, False):
        with trackers(["tensorboard"], tmp_path / "run", {}) as opened, suppress(ValueError):
            toy(micro_model, steps=4).run(
                tmp_path / "run",
                resume=not cut,
                save_every=2,
                samples=1,
                listeners=[],
                callbacks=[*opened, *[Cut()] * cut],
            )

    def read(folder):
        found = accumulator.EventAccumulator(str(folder))
        found.Reload()
        return found

    numbers = read(tmp_path / "run" / "tensorboard")
    assert [e.step for e in numbers.Tensors("reward")] == [0, 1, 2, 3]
    assert "cast" not in numbers.Tags()["tensors"]
    tables = read(tmp_path / "run" / "tensorboard" / "dialogues").Tensors("dialogues/text_summary")
    assert [e.step for e in tables] == [0, 2, 4]
    assert "| role |" in tables[0].tensor_proto.string_val[0].decode()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_go_on_in_the_same_run(name, tmp_path, stand_in):
    calls = (module := stand_in(name, SESSION)).calls
    for _ in range(2):
        send([name], tmp_path / "run", 1)
    assert len(calls) == 8
    assert calls[0] == calls[4]
    assert calls[0]["config"] == {"seed": 1}
    assert calls[1] == (1, {"reward": 1.0})
    step, values = calls[2]
    assert (step, set(values), calls[3]) == (2, {"dialogues"}, "finish")
    assert isinstance(values["dialogues"], module.Table)
    assert values["dialogues"].all == (list(_COLUMNS), ROWS)


def test_mlflow_goes_on_in_the_run_that_its_server_named(tmp_path, stand_in):
    calls = stand_in("mlflow", MLFLOW).calls
    for _ in range(2):
        send(["mlflow"], tmp_path / "run", 1)
    assert calls[:4] == ["coevolve", "run", ("recipe.yaml", {"seed": 1}), (1, {"reward": 1.0})]
    columns = {name: [row[i] for row in ROWS] for i, name in enumerate(_COLUMNS)}
    assert calls[4:6] == [("dialogues/step-2.json", columns), "finish"]
    assert calls[7] == "made-by-the-server"


def test_several_at_once(tmp_path, stand_in):
    found = [stand_in(name, SESSION).calls for name in ("wandb", "trackio")]
    send(["wandb", "trackio"], tmp_path / "run", 1)
    assert [len(calls) for calls in found] == [4, 4]


def test_all_are_closed_if_one_cannot_be_opened(tmp_path, stand_in):
    calls = stand_in("wandb", SESSION).calls
    stand_in("trackio", "def init(**k): raise OSError('no room')")
    with pytest.raises(OSError, match="no room"):
        send(["wandb", "trackio"], tmp_path / "run", 1)
    assert calls[1:] == ["finish"]


def test_an_unknown_tracker_is_named():
    with (
        pytest.raises(ValueError, match="report_to: unknown 'wandbb'; did you mean 'wandb'"),
        trackers(["wandbb"], None, {}),
    ):
        pass


def test_a_tracker_that_is_not_installed_says_how_to_get_it_before_another_is_opened(tmp_path, stand_in, monkeypatch):
    calls = stand_in("wandb", SESSION).calls
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match=r"pip install 'coevolve\[trackio\]'"):
        send(["wandb", "trackio"], tmp_path, 1)
    assert calls == []


def test_no_tracker_is_imported_unless_asked_for():
    code = "import sys, coevolve, coevolve.recipe.schema, coevolve.cli, coevolve.report.trackers as t\n"
    code += "with t.trackers([], None, {}) as opened: assert opened == []\n"
    code += "print([m for m in ('wandb', 'trackio', 'tensorboard', 'mlflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
