"""Exits: whatever ends a command is one line and never exit code 0."""

import errno
import os
import signal
import site
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from toy import RECIPE

import coevolve
from coevolve import cli, faults
from coevolve.faults import blame, user_line
from coevolve.runs.folder import RunDir

TOY = Path(__file__).with_name("toy.py")
MINE = """
import threading
from toy import Lucky

class Mine(Lucky):
    def prompt(self, p, role, heard):
        {prompt}
        return super().prompt(p, role, heard)

    def reward(self, cases):
        {reward}
        return super().reward(cases)

async def play(p, team):
    {play}
    from coevolve import score
    turns = [await team[role]() for role in team]
    await score(team, turns)

def cast(roles, last=9):
    def at(step):
        {cast}
        return roles
    return at
{top}
"""
PLACES = ("prompt", "reward", "play", "cast", "top")


STUBBORN = """
    import sys
    try:
        await team['pioneer']()
        raise KeyError('first')
    finally:
        sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def mine(micro_model, tmp_path):
    """train with user code in which one place does what it is told."""
    number = iter(range(100))

    def train(place, code, *words):
        file = tmp_path / f"mine{next(number)}.py"
        written = MINE.format(**{key: code if key == place else "pass" for key in PLACES})
        line = written[: written.index(code)].count("\n") + 1
        file.write_text(written)
        recipe = RECIPE.format(toy=TOY, model=micro_model, out=tmp_path / "run")
        recipe = recipe.replace(f"task: {TOY}:Lucky", f"task: {file}:Mine").replace("play: chain", f"play: {file}:play")
        recipe = recipe.replace("{name: exchange, every: 2}", f"{{name: '{file}:cast'}}")
        recipe = recipe.replace("algorithm: cory", "algorithm: {name: cory, penalty: sampled}")  # says nothing
        Path("recipe.yaml").write_text(recipe)
        return cli.main(["train", "recipe.yaml", *words]), f"{file}, line {line}"

    return train


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "error",
    ["SystemExit", "SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "BaseException('no')", "KeyError('no')"],
)
def test_what_user_code_raises_is_one_line_with_its_file_and_line(mine, place, error, capsys):
    code, where = mine(place, f"raise {error}")
    said = capsys.readouterr().err
    assert code == 2
    assert where in said
    assert error.split("(")[0] in said
    assert said.count("\n") == 1


def test_an_exit_at_a_later_step_leaves_the_run_to_go_on_with(mine, capsys):
    later = "if (Path := __import__('pathlib').Path)('run/checkpoint-2').exists() and not Path('on').exists(): exit(0)"
    assert mine("reward", later)[0] == 2
    assert "raised SystemExit: 0" in capsys.readouterr().err
    assert [one.name for one in RunDir(Path("run")).checkpoints()] == ["checkpoint-2"]
    Path("on").touch()
    assert cli.main(["train", "recipe.yaml", "--resume"]) == 0


def test_a_play_that_will_not_end_is_named(mine, capsys):
    code, _ = mine("play", STUBBORN)
    assert code == 2
    assert "the play, on problem" in capsys.readouterr().err


def test_a_thread_of_the_users_is_one_line(mine, capsys):
    code, where = mine("reward", "t = threading.Thread(target=lambda: 1 / 0, name='mine'); t.start(); t.join()")
    said = capsys.readouterr().err
    assert code == 0
    assert f"warning: the thread mine ended: ZeroDivisionError: division by zero ({where})" in said
    assert "Traceback" not in said


def test_an_interrupt_by_the_user_passes_through_user_code(mine, capsys):
    code, _ = mine("reward", "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert code == 130
    assert capsys.readouterr().err == "stopped at step 0; continue with --resume\n"


def test_termination_ends_like_an_interrupt(mine, capsys):
    before = signal.getsignal(signal.SIGTERM)
    code, _ = mine("reward", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert code == 143
    assert capsys.readouterr().err == "stopped at step 0; continue with --resume\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("own", [signal.SIG_IGN, print], ids=["ignored", "handled"])
def test_a_signal_that_is_ignored_or_has_a_handler_keeps_it(own):
    """As under ``nohup``, or in a program that has us as a library."""
    before = signal.signal(signal.SIGHUP, own)
    try:
        with faults.signals():
            assert signal.getsignal(signal.SIGHUP) is own
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_before_there_is_a_run_does_not_speak_of_resuming(mine, capsys):
    assert mine("top", "import os, signal; os.kill(os.getpid(), signal.SIGINT)")[0] == 130
    assert capsys.readouterr().err == "stopped at step 0; no run was begun; start it again\n"


def test_an_interrupt_of_user_code_is_its_own_where_nobody_else_can_interrupt(mine, capsys):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code, where = mine("reward", "raise KeyboardInterrupt")
    assert code == 2
    assert where in capsys.readouterr().err


def test_a_plain_interrupt_outside_of_the_command_line_passes():
    with pytest.raises(KeyboardInterrupt), blame("the reward"):
        raise KeyboardInterrupt


GAME = Path(__file__).parents[1] / "recipes" / "posg-chicken-joint.yaml"

SHORT = {
    MemoryError(): "out of memory (MemoryError",
    torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nmore"): "out of memory (OutOfMemoryError: CUDA out",
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"): "out of memory (RuntimeError",
    OSError(errno.ENOSPC, "No space left on device"): "the disk is full (OSError: [Errno 28]",
    OSError(errno.EFBIG, "File too large"): "a file became larger than it may be (OSError: [Errno 27]",
    OSError(errno.EMFILE, "Too many open files"): "too many open files (OSError",
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"): "no more processes or threads (BlockingIOError",
    RuntimeError("can't start new thread"): "no more processes or threads (RuntimeError: can't start new thread",
    RuntimeError(
        "[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"
    ): "the disk is full (RuntimeError",
    sqlite3.OperationalError("database or disk is full"): "the disk is full (OperationalError",
    Exception("IO Error: No space left on device (os error 28)"): "the disk is full (Exception",
}


@pytest.mark.parametrize(("error", "said"), SHORT.items(), ids=map(repr, SHORT))
def test_what_the_machine_lacks_is_said_with_step_and_policy_and_what_to_do(
    error, said, micro_model, monkeypatch, capsys
):
    def lacking(*args, **kwargs):
        raise error

    monkeypatch.setattr("coevolve.learners.local.LocalLearner.update", lacking)
    Path("recipe.yaml").write_text(RECIPE.format(toy=TOY, model=micro_model, out="run"))
    assert cli.main(["train", "recipe.yaml", "algorithm.penalty=sampled"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: step 0: policy 'ann': " + said)
    assert err.endswith("; continue with --resume\n")
    assert err.count("\n") == 1


def test_a_reward_that_lacks_memory_is_no_fault_of_the_users(mine, capsys):
    code, where = mine("reward", "raise MemoryError")
    assert code == 1
    assert f"error: the reward of Mine, step sample: out of memory (MemoryError ({where})" in capsys.readouterr().err


def test_a_sandbox_that_does_not_start_is_no_fault_of_the_users(mine, capsys):
    code, _ = mine(
        "reward", "from coevolve.rewards.sandbox.worker import StartError; raise StartError('it does not start')"
    )
    assert code == 1
    assert "error: the reward of Mine, step sample: it does not start" in capsys.readouterr().err


@pytest.mark.parametrize("told", [blame, faults.during])
def test_ranks_that_are_lost_stay_that_wherever_they_are_missed(told):
    with pytest.raises(faults.RanksLostError, match=r"^step 3: rank 0 of 2 died$"), told("step 3"):
        raise faults.RanksLostError("rank 0 of 2 died")


def test_memory_that_is_really_not_there_is_said(micro_model):
    def ask():
        with faults.during("here"):
            torch.empty(1 << 60)

    with pytest.raises(faults.ShortageError, match="here: out of memory"):
        ask()


@pytest.mark.parametrize("count", [100_000, 5_000])
def test_threads_that_would_end_the_process_are_refused(count, mine, capsys):
    code, _ = mine("top", "", f"threads={count}")
    assert code == 2
    assert f"error: threads is {count}; want 1 to" in capsys.readouterr().err
    assert not Path("run").exists()


def test_an_unforeseen_error_is_our_fault_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr("coevolve.recipe.read.load_recipe", {}.__getitem__)
    assert cli.main(["train", "recipe.yaml"]) == 1
    err = capsys.readouterr().err
    assert "this is a fault of coevolve; COEVOLVE_DEBUG=1 shows where" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (Path(coevolve.__file__).parent / "x.py", "test_faults.py"),
        (Path(f"{Path(coevolve.__file__).parent}_mine") / "reward.py", "coevolve_mine"),
        (Path(site.getusersitepackages()) / "library.py", "test_faults.py"),
    ],
)
def test_the_line_is_the_users(file, whose):
    """Not that of this package, of a folder whose name begins alike, or of what pip installed for the user."""
    with pytest.raises(KeyError) as error:
        exec(compile("{}['a']", file, "exec"))
    assert whose in user_line(error.value)


def test_an_error_without_a_text_has_a_line_too():
    class HostileError(Exception):
        def __str__(self):
            raise SystemExit(0)

    with pytest.raises(ValueError, match=r"it: raised HostileError \(.*test_faults.py, line \d+\)"), blame("it"):
        raise HostileError


def started(command, **streams):
    code = f"import sys; from coevolve import cli; sys.exit(cli.main({command!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, **streams)


@pytest.mark.parametrize("command", [["doctor"], ["train", str(GAME), "steps=3", "output_dir=run"]])
def test_output_that_nobody_reads_is_no_error(command, tmp_path, monkeypatch):
    """Of lines of ours, and of what rich draws, which would end the process itself."""
    monkeypatch.chdir(tmp_path)
    process = started(command, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 128 + signal.SIGPIPE


def test_no_output_at_all_is_no_error():
    process = started(["doctor"], preexec_fn=partial(os.close, 1))
    assert process.stderr.read() == ""
    assert process.wait() == 0
