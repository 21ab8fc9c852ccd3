"""A team small enough for exact tests: be paid for each token of one kind."""

from coevolve import PolicySpec, Problem, Sampling, Trainer, chain, cory, exchange, fixed

LUCKY = 7

RECIPE = """
task: {toy}:Lucky
play: chain
roles: {{pioneer: ann, observer: bob}}
cast: {{name: exchange, every: 2}}
policies:
  ann: {{model: {model}, learning_rate: 1.0e-2}}
  bob: {{model: {model}, learning_rate: 1.0e-2}}
algorithm: cory
sampling: {{max_new_tokens: [2, 5]}}
steps: 4
batch_size: 8
save_every: 2
samples: 1
output_dir: {out}
"""
"""A recipe of it: ``toy``, this file; ``model``; ``out``."""


class Lucky:
    """Reward: how often the turn sampled token LUCKY. The observer hears how well the pioneer did."""

    train = tuple(Problem(f"p{i}") for i in range(16))
    test = tuple(Problem(f"t{i}") for i in range(4))

    def prompt(self, p, role, heard):
        turns = [turn for turn in heard if turn != ""]  # plays of several turns put a note behind each
        return "a b" + "".join(" c" if LUCKY in turn.action_ids else " d" for turn in turns)

    def reward(self, cases):
        return [[float(list(t.action_ids).count(LUCKY)) for t in case.turns] for case in cases]


def toy(model, *, roles=("pioneer", "observer"), every=2, learning_rate=1e-2, algorithm=None, **settings):
    cast = dict(zip(roles, ("ann", "bob"), strict=False))
    settings = {"steps": 6, "batch_size": 8, "sampling": Sampling((2, 5)), "play": chain()} | settings
    return Trainer(
        task=Lucky(),
        cast=settings.pop("cast", None) or (exchange(cast, every) if len(cast) == 2 else fixed(cast)),
        policies=settings.pop("policies", None)
        or {name: PolicySpec(model=str(model), learning_rate=learning_rate) for name in cast.values()},
        algorithm=algorithm or cory(eta=0.05),
        **settings,
    )


def without_times(line):
    return {k: v for k, v in line.items() if not k.startswith("time/") and k != "tokens_per_second"}
