"""What was wrong with how a run learned, in sentences: from the numbers of `Agent.inspect` and the learner's report.

A run whose return improved is well, whatever its numbers: what has learned all there is has small gradients, and values that
are the same everywhere saturate their layers. It is told of two things alone, which are wrong in any run: a target network
that was never copied, and returns that a support cuts off. Thresholds were held against ppo, a2c, impala, dqn, rainbow and
r2d2 on CartPole-v1 and catch, about half a minute each: all that learned were silent, and r2d2 on catch said rightly, after
34 updates, that its target was never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MOST = 3  # sentences that are told
LEAST_UPDATES = 30  # fewer show nothing
MANY_UPDATES = 1_000  # by which a policy should depend on the state, and gradients have been large somewhere
GAIN = 0.1  # of the greater of both returns: less is no improvement
CUT = 0.1  # of the targets' mass
DEAD = 0.8  # of a layer's units
BELOW = 0.99  # of the second moments
SAME = 1e-3  # nats, standard deviations or share of states
COLLAPSED = 0.05  # nats of entropy
CLIPPED, EXCESS, LEAST_ROWS = 0.99, 10.0, 10  # share of gradients, their norm over the greatest allowed, rows that show it


class History(NamedTuple):
    """What is known of a run in the end."""

    rows: Sequence[Mapping[str, Any]]  # the last rows of metrics.jsonl, the last one with the state that was saved
    first_return: float | None  # mean of the first episodes
    last_return: float | None  # mean of the last ones

    @property
    def improved(self) -> bool | None:
        """Whether the return improved; None: no episode ended that could tell."""
        if self.first_return is None or self.last_return is None:
            return None
        return self.last_return - self.first_return > GAIN * max(abs(self.first_return), abs(self.last_return))


def warnings(history: History, algorithm: Any) -> list[str]:
    """Write a sentence for each thing that is wrong, the worst first: what, the figure, and the remedy with its option.

    algorithm: the dataclass of hyper-parameters; of one that lacks an option, no sentence names it.
    """
    last = dict(history.rows[-1]) if history.rows else {}
    if (last.get("updates") or 0) < LEAST_UPDATES:
        return []
    always: list[Callable[..., str | None]] = [_never_copied, _cut_off]
    unless_improved = [_dead, _same, _below_epsilon, _clipped]
    asked = always if history.improved in (True, None) else [*always, *unless_improved]
    return [text for ask in asked if (text := ask(last, history.rows, algorithm))][:MOST]


MetricsRow = Mapping[str, Any]


def _never_copied(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    period = getattr(algorithm, "target_period", None)
    if last.get("health/target_copies") != 0 or period is None:
        return None
    steps = int(last["updates"]) * getattr(algorithm, "gradient_steps", 1)
    what = "update was" if steps == 1 else "updates were"
    return f"The target network was never copied: {steps:,} {what} made and --target-period is {period:,}: lower it."


def _cut_off(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    share, ends = last.get("health/support_ends"), getattr(algorithm, "value_range", None)
    if share is None or share < CUT:
        return None
    where = "of ±3,000" if ends is None else f"[{ends[0]:g}, {ends[1]:g}]"
    remedy = "scale the rewards" if ends is None else "widen --value-range"
    return f"{share:.0%} of the targets' mass lies beyond the support {where}: such returns are cut off; {remedy}."


def _dead(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    share = last.get("health/dead_units")
    if share is None or share < DEAD:
        return None
    scaled = " or --normalise-observations" if getattr(algorithm, "normalise_observations", None) is False else ""
    return (
        f"{share:.0%} of a layer's units are dead, they give the same for every state: try a lower --learning-rate, "
        f"observations of a smaller scale{scaled}, or another --network.activation."
    )


def _same(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    spread, entropy = last.get("health/policy_spread"), last.get("entropy")
    if spread is None or spread > SAME:
        return None
    costs = hasattr(algorithm, "entropy_cost")
    if entropy is not None and abs(entropy) < COLLAPSED and costs:
        return (
            f"The policy does the same in every state, and nothing else (entropy {entropy:.2g}): raise --entropy-cost, or "
            "lower --learning-rate."
        )
    if last["updates"] < MANY_UPDATES:
        return None
    return (
        f"The policy does the same in every state after {last['updates']:,} updates (spread {spread:.2g}): nothing of what it "
        "sees reaches it. Try another --learning-rate; or are the observations all alike?"
    )


def _below_epsilon(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    share = last.get("health/below_epsilon")
    if share is None or share < BELOW or last["updates"] < MANY_UPDATES:
        return None
    options = [name for name in ("rmsprop_epsilon", "adam_epsilon") if hasattr(algorithm, name)]
    remedy = f"lower --{options[0].replace('_', '-')}" if options else "raise --learning-rate"
    shown = f"{share:.1%}" if share < 0.9995 else "All"
    of_them = "of the second moments" if share < 0.9995 else "second moments"
    return f"{shown} {of_them} are below the optimizer's epsilon, which makes it plain SGD: {remedy}."


def _clipped(last: MetricsRow, rows: Sequence[MetricsRow], algorithm: Any) -> str | None:
    allowed = getattr(algorithm, "max_gradient_norm", None)
    told = [row for row in rows if row.get("gradient_clipped") is not None and row.get("gradient_norm") is not None]
    if not allowed or len(told) < LEAST_ROWS or sum(row["gradient_clipped"] for row in told) < CLIPPED * len(told):
        return None
    norms = sorted(row["gradient_norm"] for row in told)
    excess = norms[len(norms) // 2] / allowed
    if excess < EXCESS:
        return None
    return (
        f"Every gradient was clipped, to 1 / {excess:,.0f} of its norm of {norms[len(norms) // 2]:,.3g}: scale the rewards, or "
        "raise --max-gradient-norm and lower --learning-rate."
    )
