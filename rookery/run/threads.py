"""How many threads XLA gets in a process that trains one system and does nothing else.

For small products, handing a piece to another thread costs more than the piece. Measured on two cores: Anakin with
minibatches of 256 through layers of 64 makes 57,000 steps/s with two threads and 72,000 with one, PPO on Sync with 512 rows
gains a sixth; at 64 rows through layers of 256 both are alike, and 4,096 rows through layers of 64 want two. Where collectors
and a learner overlap, each computes in its own thread: IMPALA on CartPole makes 122,000 steps/s so, 90,000 otherwise.

Boards go through a small convolution: two threads bring a seventh there (PPO on an 8 x 8 catch, 3.4 updates/s instead of 2.95)
where the machine is free. Where something else runs beside, each of the many small operations waits for a thread that has lost
its core: 0.1 updates/s instead of 2. So they get one.
"""

from __future__ import annotations

from rookery import spaces
from rookery.envs.jax.sources import is_jax_id
from rookery.run import startup
from rookery.run.assemble import spec_of
from rookery.run.config import Config

SMALL = 4_500_000  # multiply-adds of the largest product
IMAGE = 24  # sides from here on go through three convolutions (networks/encoders.py)


def limit(cfg: Config) -> None:
    """Give XLA one thread where that is faster; call it before the first computation. NPROC, where it is set, stays."""
    if one_is_enough(cfg):
        startup.use_one_thread()


def one_is_enough(cfg: Config) -> bool:
    network = getattr(cfg.algorithm, "network", None)
    if network is None or not hasattr(cfg.algorithm, "rollout_length") or cfg.torso is not None:
        return False
    if cfg.run.devices > 1 or cfg.run.learner_processes:  # those who share an update wait for each other
        return False
    from rookery.algorithms.minibatches import MOST  # with jax, whose flags are set when a command has read its words

    rows = getattr(cfg.algorithm, "batch_size", None)
    rows = rows or cfg.steps_per_update / (getattr(cfg.algorithm, "minibatches", 1) or MOST)
    width = max(*network.hidden, network.core_size if network.core != "none" else 1, 1)
    return rows * width**2 <= SMALL and (network.encoder == "mlp" or (network.encoder in ("auto", "small") and _small(cfg)))


def _small(cfg: Config) -> bool:
    """Return whether observations are boards or vectors: images go through convolutions, which want every core."""
    if isinstance(cfg.env, str) and is_jax_id(cfg.env):
        return True
    try:
        observation = spec_of(cfg).observation
    except Exception:  # what is wrong with it is said where it is made for good
        return False
    shapes = [space.shape or () for _, _, space in spaces.leaves(observation)]
    return all(len(shape) <= 1 or max(shape) < IMAGE for shape in shapes)
