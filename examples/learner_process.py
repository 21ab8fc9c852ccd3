"""A learner of your own: every policy learns in a process of its own, which only this file knows.

There, one of our learners is sent what this one is asked. Engines read the folders that it writes.
"""

import pickle
import subprocess
import sys
from functools import partial

from coevolve import Published, build_policies


class ProcessLearner:
    def __init__(self, name, spec, **how):  # how: reference, critic, steps, seed, and what else the recipe says
        self.name, self.spec, self.place = name, spec, object()  # learners in different places work side by side
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.tokenizer, self.trainable, self.compute, self.about, *self.limits = self.ask("start", name, spec, how)

    def ask(self, what, *given):
        try:
            self.process.stdin.write(pickle.dumps((what, given)))
            self.process.stdin.flush()
            found = pickle.load(self.process.stdout)
        except (EOFError, OSError) as error:
            raise ValueError(f"the process of policy {self.name!r} ended with {self.process.wait()}") from error
        if isinstance(found, Exception):
            raise found
        return found

    def __getattr__(self, what):
        forwarded = what in ("describe", "update", "save", "training_state", "load", "reset_optimizer")
        return partial(self.ask, what) if forwarded else object.__getattribute__(self, what)

    def published(self, version):
        self.ask("published", version)
        return Published(self.name, version, self.spec, self.tokenizer, *self.limits, partial(self.ask, "save_model"))

    def close(self):
        self.process.communicate()  # it ends with its input


def answer(learners, what, given):
    if what == "start":
        name, spec, how = given
        learners[0] = one = build_policies({name: spec}, **how)[name]
        return one.tokenizer, one.trainable, one.compute, f"{one.about}, elsewhere", one.context, one.eos
    found = getattr(learners[0], what)(*given)
    return found.version if what == "published" else found  # the other end makes one of its own


if __name__ == "__main__":  # the process
    out, sys.stdout, learners = sys.stdout.buffer, sys.stderr, {}
    while sys.stdin.buffer.peek(1):
        try:
            found = answer(learners, *pickle.load(sys.stdin.buffer))
        except Exception as error:  # noqa: BLE001 (raised at the other end)
            found = error
        pickle.dump(found, out)
        out.flush()
