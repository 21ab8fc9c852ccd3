"""A reward of your own on rows of your own: a file of rows, a template for each role, and a function that pays."""

from pathlib import Path

from coevolve import PolicySpec, Sampling, Trainer, fixed, magrpo, rounds
from coevolve.tasks import Rows


def reward(short, long, *, animal, **columns):
    """Both should name the animal, and the long text should have twice as many words as the short one."""
    words = len(short.split()), len(long.split())
    return (animal in short) + (animal in long) + min(1.0, words[1] / (2 * words[0] + 1))


def feedback(texts, *, animal, **columns):
    """For plays of several turns: what each role hears of its last text."""
    return {role: "Good." if animal in text else f"Say {animal}." for role, text in texts.items()}


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes the functions only
    start = PolicySpec("coevolve-tiny", learning_rate=1e-3)
    trainer = Trainer(
        task=Rows(
            data=str(Path(__file__).with_name("animals.jsonl")),
            test=0.25,
            prompts={"short": "My friend has a {animal}. I like the", "long": "It has {legs} legs, my {animal}. The"},
            reward=reward,
            feedback=feedback,
        ),
        play=rounds(),  # both write at once; rounds(n=2, feedback=True) for a second turn
        cast=fixed({"short": "ann", "long": "bob"}),
        policies={"ann": start, "bob": start},
        algorithm=magrpo(),
        sampling=Sampling(max_new_tokens=12),
        steps=30,
        batch_size=6,
        members=4,
    )
    trainer.run("runs/own-reward")
