"""Checks for settings that exclude each other or that other settings make unused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coevolve.algorithms.baselines import WITHOUT_PEERS
from coevolve.settings import check_unused


def kl_in_reward(s: Mapping[str, Any]) -> bool:
    """Return whether the KL is subtracted from the return, not a term of the loss."""
    return bool(s["kl"] == "reward")


def check_left_out(factory: Callable[..., Any], s: Mapping[str, Any]) -> None:
    """Raise ValueError if ``group_relative``'s drop_flat, resample, decay or baseline do not fit its other settings."""
    if s["baseline"] != "moving":
        check_unused(factory, s, "decay", "baseline: moving")
    if (s["baseline"], s["group"]) == ("shrunk", "role"):
        raise ValueError("algorithm: baseline: shrunk draws a group towards the others of its role, and group: role "
                         "leaves no others; set baseline: loo, or group: peers")  # fmt: skip
    if s["drop_flat"] and s["baseline"] in (*WITHOUT_PEERS, "shrunk"):
        raise ValueError(f"algorithm: drop_flat leaves groups of equal returns out, and with baseline {s['baseline']} "
                         "they have an advantage; set baseline: mean, or drop_flat: false and resample: 0")  # fmt: skip
    if s["drop_flat"] and s["beta"] > 0 and kl_in_reward(s):
        raise ValueError("algorithm: drop_flat leaves groups of equal returns out, and with kl: reward their "
                         "KL too; set kl: loss and no k1, or drop_flat: false and resample: 0")  # fmt: skip
    if s["drop_flat"] and s["std"] == "team":
        raise ValueError("algorithm: drop_flat leaves turns out, and std: team divides by those of all; set std: "
                         "agent, or drop_flat: false")  # fmt: skip
    if s["resample"] and not (s["drop_flat"] and s["group"] == "peers"):
        raise ValueError("algorithm: resample plays others in place of groups that drop_flat leaves out; set "
                         "drop_flat: true and group: peers, or resample: 0")  # fmt: skip


def uncentred(std: str, baseline: str) -> str:
    """Return a caution if returns are divided by their spread but not centred, else an empty text."""
    if std == "none" or baseline not in WITHOUT_PEERS:
        return ""
    return (
        f"std: {std} divides by how far returns are apart, and baseline: {baseline} does not take off what they have "
        "in common, so returns that hardly differ have huge advantages (1, 1.001 and 1 come to over 2,000 each); set "
        "std: none, or baseline: mean"
    )


def unweighed(s: Mapping[str, Any]) -> str:
    """Return a caution if the KL of ``group_relative``'s settings is divided by a spread that is its own where rewards
    are equal, else an empty text."""
    if s["beta"] == 0 or not kl_in_reward(s) or s["std"] not in ("group", "agent"):
        return ""
    return (
        f"std: {s['std']} divides returns less their KL by how far they are apart, so where rewards are equal the KL "
        "alone is brought to size 1, however small beta is; set kl: loss and estimator: k2, or std: none"
    )


def unfelt(s: Mapping[str, Any]) -> str:
    """Return a caution if the KL of ``group_relative``'s settings has no gradient, or hardly one near the start model,
    else an empty text."""
    # k1 has its gradient as a reward, the others in the loss.
    if s["beta"] == 0 or kl_in_reward(s) == (s["estimator"] == "k1"):
        return ""
    if not kl_in_reward(s):
        return (
            "estimator: k1 in the loss does not hold a policy to its start: of a policy's own samples the mean of its "
            "gradient is 0, and only noise is left; set estimator: k2, or kl: reward"
        )
    return (
        f"estimator: {s['estimator']} as a reward hardly holds a policy to its start: 2 % of the KL's gradient at a KL "
        "of .001, 10 % at .03; set estimator: k1, or kl: loss"
    )


def check_critic(factory: Callable[..., Any], s: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of a critic where ``ppo`` has none, for ``horizon`` without ``target_kl``, and for
    ``target_kl`` with eta 0."""
    if s["value_norm"] and not s["critic"]:
        raise ValueError("algorithm: value_norm is of a critic's values, and critic is false; leave one of them out")
    if not s["critic"]:
        check_unused(factory, s, "value_clip", "critic: true")  # value_coef may be a2c's own default
    if s["target_kl"] is None:
        check_unused(factory, s, "horizon", "target_kl")
    elif s["eta"] == 0:
        raise ValueError("algorithm: target_kl multiplies eta, and eta is 0, which stays 0; set eta above 0, or leave "
                         "target_kl out")  # fmt: skip
