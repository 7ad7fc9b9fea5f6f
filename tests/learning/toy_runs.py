"""Short runs on the toys. A case is a system, an environment, the return to reach and options in which it does so for every
seed that was tried (ROOKERY_TEST_SEED=1 tries another); `total_steps` is three times what they needed, or more.

On an idle core a run takes 2 to 10 seconds, nearly all of it compilation.
"""

import os
from typing import NamedTuple

import rookery
from rookery.algorithms import sharing
from rookery.envs.toys import TOYS

SMALL = {"hidden": (32,)}


class Case(NamedTuple):
    system: str
    env: str
    bar: float  # mean return of the last 100 training episodes
    options: dict

    def __str__(self):
        return f"{self.options.get('variant', self.system)} on {self.env}"


def case(system, env, bar, *, network=SMALL, **options):
    return Case(system, env, bar, {"network": network, **options})


def play(case, directory, **changes):
    """The metrics of a run that ends when the bar is reached, or without having reached it after `total_steps`."""
    result = rookery.train(
        case.system, env=case.env, runs=str(directory), seed=int(os.environ.get("ROOKERY_TEST_SEED", "0")),
        stop_return=case.bar, eval_episodes=0, **case.options | changes,
    )  # fmt: skip
    return result.metrics


def assert_learned(case, metrics):
    toy = TOYS[case.env.removeprefix("jax:")](**case.options.get("env_options", {}))
    assert toy.random_return < case.bar <= toy.optimal_return
    assert metrics["return_mean"] >= case.bar, f"{metrics['return_mean']} after {metrics['env_steps']} steps: {metrics}"


def with_flipped_policy_loss(monkeypatch, module):
    """The policy's term of the loss changes its sign for agents built from now on; all else stays."""
    monkeypatch.setattr(sharing, "_kept", [])  # else one that was built before, with the right sign, would serve; and after
    if hasattr(module, "terms"):  # of PPO and APPO
        terms = module.terms
        flipped = lambda *args, **options: (found := terms(*args, **options)) | {"policy": -found["policy"]}
        return monkeypatch.setattr(module, "terms", flipped)
    right = module.loss

    def wrong(*args, **options):
        loss, report = right(*args, **options)
        return loss - 2.0 * report["loss/policy"], report

    return monkeypatch.setattr(module, "loss", wrong)


def assert_flipping_is_seen(case, monkeypatch, module, directory):
    """With the sign flipped the same settings end near the worst policy: what the other tests see is the policy's loss."""
    with_flipped_policy_loss(monkeypatch, module)
    metrics = play(case, directory)
    toy = TOYS[case.env]()
    assert metrics["env_steps"] >= case.options["total_steps"]
    assert metrics["return_mean"] < toy.random_return
