"""One recipe of every kind of run that a report shows, made small."""

SHORT = "sampling.max_new_tokens=8"
FAMILIES = {
    "cory": ("quickstart", ["steps=4", "cast={name: exchange, every: 2}", "save_every=2"]),
    "writing": ("magrpo-writing-mini", ["members=2", SHORT]),
    "tree": ("magrpo-writing-mini-tree", ["play={name: tree, n: 2, k: 2, feedback: true}", SHORT]),
    "feedback": ("magrpo-mini-coop-tiny-2turns", ["members=2", "play={name: rounds, n: 2, feedback: true}"]),
    "numbers": ("cory-arithmetic-tiny", [SHORT]),
    "game": ("posg-chicken-joint", []),
    "discussion": ("discussion-mini-coop-tiny", ["members=2", SHORT]),
}
"""What each trains, apart from two steps on two problems."""
