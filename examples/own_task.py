"""A task of your own: what the problems are, what a role is told, and what its turn is worth."""

from coevolve import PolicySpec, Problem, Sampling, Trainer, chain, cory, exchange


class Brief:
    """Name the animal, and be brief: two points for its name, a tenth less for every word. The last is held out."""

    asks = ("animal",)  # what to give an exported team

    def __init__(self, *, animals: tuple[str, ...] = ("cat", "dog", "bird", "fish", "horse")) -> None:
        problems = [Problem(animal, {"animal": animal}) for animal in animals]
        self.train, self.test = problems[:-1], problems[-1:]

    def prompt(self, p, role, heard):
        asked = f"My friend has a {p.data['animal']}. I like the"
        return f"{heard[-1].text} {asked}" if heard else asked

    def reward(self, cases):
        return [[worth(case.problem, turn) for turn in case.turns] for case in cases]


def worth(p, turn):
    return 2.0 * (p.data["animal"] in turn.text) - 0.1 * len(turn.text.split())


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes Brief only
    start = PolicySpec("coevolve-tiny", learning_rate=1e-3)
    trainer = Trainer(
        task=Brief(),
        play=chain(),
        cast=exchange({"pioneer": "ann", "observer": "bob"}),
        policies={"ann": start, "bob": start},
        algorithm=cory(eta=0.1),
        sampling=Sampling(max_new_tokens=12),
        steps=30,
        batch_size=16,
    )
    trainer.run("runs/own-task")
