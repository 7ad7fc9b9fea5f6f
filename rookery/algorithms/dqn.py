"""DQN (Mnih et al. 2015) and what was added to it, each a switch; all of them together are Rainbow (Hessel et al. 2018).

| switch | paper | what changes |
|---|---|---|
| `double` | van Hasselt et al. 2016 | the newest network chooses the next action, the target network values it |
| `dueling` | Wang et al. 2016 | the value of a state and the advantages of actions are learned apart |
| `n_step` | Sutton 1988 | rewards of n steps before the value of what follows |
| `replay.selector` | Schaul et al. 2016 | surprising transitions are replayed more often, and weighted for it |
| `num_atoms` | Bellemare et al. 2017 | the distribution of returns is learned, not its mean (C51) |
| `noisy` | Fortunato et al. 2018 | noise in the weights explores, not epsilon |
| `exploration = ladder` | Horgan et al. 2018 | Ape-X: an epsilon for each environment; collectors give priorities |
| `fresh` | Mnih et al. 2016 | no replay: whole rollouts, each learned from once (asynchronous Q-learning) |
| `exploration = anneal-ladder` | both | from 1 to a rung of the ladder for each environment |
| `exploration = mixed` | Mnih et al. 2016 | annealed to 0.1, 0.01 or 0.5, in shares of 0.4, 0.3 and 0.3 of the environments |

Differs from the papers: Adam on a mean loss throughout; Rainbow's priority is the
cross-entropy, not the divergence; a truncated episode bootstraps from its last observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery import ops
from rookery.algorithms import curl, hyper, inspection, normalisers, optimizers, reward_unit
from rookery.algorithms.minibatches import pieces
from rookery.algorithms.priorities import PRIORITY_FLOOR, counted, first_priorities
from rookery.data import columns
from rookery.data.config import ReplayConfig, TableSpec
from rookery.networks import NetworkConfig, ViewsConfig, encoders
from rookery.networks.convolution import inside_loop
from rookery.networks.q_network import Noise, QNetwork, Values, q_network
from rookery.networks.torso import Torso
from rookery.ranges import Count, Finite, Long, Natural, Positive, Range, Rate, Share
from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState

MIXED = ((0.4, 0.1), (0.7, 0.01), (1.0, 0.5))  # up to that share of the environments, that last epsilon
TOGETHER = 8  # batches that go through a target network that stands still: a product of 64 rows runs on one core
GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, fill [0, 1) evenly, however many there are


@dataclass(frozen=True, kw_only=True)
class DQN:
    """Q-learning from replay; every part of Rainbow is a switch."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "epsilon", "error_clip", "max_gradient_norm", "contrastive_rate", "encoder_polyak", "discount",
    )
    #   may change while a run goes on (see hyper.py)
    rollout_length: Count = 4
    """Steps of every environment between two visits to the table."""
    fresh: bool = False
    """Learn from each rollout once, when it is fresh, instead of from a replay."""
    discount: Share = 0.99
    n_step: Annotated[int, Range(1, 255)] = 1
    double: bool = False
    dueling: bool = False
    noisy: bool = False
    num_atoms: Annotated[int, Range(1, 10_001)] = 1
    """Of the distribution of returns (C51 has 51); 1: only the mean is learned."""
    value_range: tuple[Finite, Finite] | None = None
    """Of that distribution, evenly (C51: -10 10, for clipped rewards); None: to ±3,000, dense around 0 (Hafner et al. 2023)."""
    batch_size: Count = 32
    gradient_steps: Count = 1
    """Batches that are sampled and learned from at once: faster, but priorities are older."""
    target_period: Long = 500
    """Gradient steps between copies to the target network; fewer in a run that would make less than 50 of them."""
    learning_rate: Rate = 2.5e-4
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run: what was learned last is then not forgotten again."""
    adam_epsilon: Positive = 1e-8
    max_gradient_norm: Positive = 10.0
    error_clip: Positive = 1.0
    """Errors count squared up to here and linearly beyond. With 1, a state just before an end that is overvalued by 50 pulls no
    harder than by 1: where values are that large and targets are copied often, they can grow without bound."""
    exploration: Literal["anneal", "ladder", "anneal-ladder", "mixed"] = "anneal"
    """Epsilon: annealed with the steps, a ladder over the environments (Ape-X), or both; mixed: 0.1, 0.01 or 0.5 in the end."""
    epsilon: Share = 0.05
    """Share of random actions in the end; of the ladder, that of its first environment."""
    epsilon_steps: Long | None = None
    """Environment steps until then, from 1; None: a tenth of the run. At most half of it."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this; None: they are not."""
    normalise_rewards: bool | None = None
    """Divide rewards by the mean size of those that are not 0; None: unless a clip or a value range gives them their unit."""
    normalise_observations: bool | None = None
    """By running mean and deviation; None: those numbers of vectors that have no bounds, or bounds beyond ±100."""
    contrastive_every: Natural = 0
    """Updates for each contrastive step of the encoder (CURL), on the same batch; 0: none. Needs --views.kind."""
    contrastive_rate: Rate = 1e-3
    """Learning rate of the contrastive steps."""
    encoder_polyak: Share = 0.025
    """Share of the way that CURL's momentum encoder goes to the newest one, each update."""
    views: ViewsConfig = field(default_factory=ViewsConfig)
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(128, 128), activation="relu"))
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    @property
    def samples_per_update(self) -> int:
        return self.batch_size * self.gradient_steps

    @property
    def steps_per_update(self) -> float | None:
        """None: those of a whole batch of rollouts."""
        return None if self.fresh else self.samples_per_update / self.replay.samples_per_insert

    @property
    def scales_rewards(self) -> bool:
        """Tell whether rewards are learned from in units of their mean size."""
        given = self.reward_clip is not None or self.value_range is not None
        return not given if self.normalise_rewards is None else self.normalise_rewards

    @property
    def warm_up_steps(self) -> int:
        return 0 if self.fresh else self.replay.min_size

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        if curl.asked(self):
            return curl.build(self, spec, curl.EncoderPlace("network", follows=False), num_updates=num_updates, torso=torso)
        atoms = support_of(self) if self.num_atoms > 1 else None
        network = q_network(
            spec, self.network, atoms=atoms, near_zero=self.value_range is None, dueling=self.dueling, noisy=self.noisy,
            torso=torso,
        )  # fmt: skip
        if self.network.core != "none":
            raise ValueError("a DQN learns from single transitions, which no memory can be trained on: use --network.core none")
        if self.scales_rewards and self.reward_clip is not None:
            raise ValueError("--normalise-rewards and --reward-clip both give rewards their unit, in two ways: use one of them")
        if self.fresh and (self.gradient_steps > 1 or self.replay.selector == "prioritized"):
            raise ValueError(
                "--fresh learns from each rollout once, in one step: use --gradient-steps 1 and --replay.selector uniform"
            )
        ladder, K = self.exploration == "ladder", self.gradient_steps
        steps = num_updates * K if num_updates and self.anneal else None
        optimizer = optimizers.adam(epsilon=self.adam_epsilon)
        prioritized = self.replay.selector == "prioritized"
        units = normalisers.build(spec, observations=self.normalise_observations, rewards=False)
        scaled = self.scales_rewards

        target = partial(values_after, network=network, config=self)

        def init(key: Array) -> TrainState:
            params = {"network": network.init(key), "hyper": hyper.leaves(self)} | units.init()
            params |= {"reward": reward_unit.init()} if scaled else {}
            slow = jax.tree.map(jnp.copy, params["network"])
            return TrainState(params, slow, {"network": optimizer.init(params["network"])}, jnp.zeros((), jnp.int32))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            keys = dict(zip(("noise", "choice"), jax.random.split(key)))
            noise = Noise(keys["noise"], explore["noise"]) if self.noisy else None
            q = network.step(params["network"], units.observe(params, observation), memory, noise)[0].q
            legal = encoders.split_mask(observation)
            action = ops.epsilon_greedy(keys["choice"], q, epsilon=explore["epsilon"], legal=legal)
            extras = {"q": ops.of_action(q, action), "value": q.max(-1)} if ladder and prioritized else {}
            return Decision(action, memory, extras)

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return {
                "epsilon": epsilons(hyper.on_host(self, params), np.asarray(env_index), num_envs, env_steps),
                "noise": np.full(len(env_index), float(self.noisy), np.float32),
            }

        def unit(params: PyTree) -> Array | float:
            """Compute what rewards are divided by; a table's rewards are sums of n."""
            return reward_unit.unit(params["reward"], 1 if self.fresh else self.n_step) if scaled else 1.0

        def statistics(batch: Batch) -> PyTree:
            """Take the moments of a batch, by name, as it comes from the table."""
            found = units.statistics(batch.rollout) | ({"reward": reward_unit.statistics(batch.rollout)} if scaled else {})
            return jax.lax.optimization_barrier(found)

        def observed(params: PyTree, statistics: PyTree) -> PyTree:
            """Merge them into the parameters. Barriers: the same bits, whether or not gradient and `apply` are one program."""
            moved = units.observed(params, statistics)
            return params | jax.lax.optimization_barrier({name: moved[name] for name in statistics})

        def in_units(params: PyTree, batch: Batch, statistics: PyTree) -> Batch:
            """Give a batch the units in which it is learned from: observations those that were acted on, rewards theirs as of
            this batch, so that the first update does not take them as they come."""
            rollout = batch.rollout
            seen = units.observe(params, rollout.observation)
            by = jax.lax.optimization_barrier(unit(observed(params, statistics)))
            reward = jax.lax.optimization_barrier(rollout.reward / by) if scaled else rollout.reward
            return batch._replace(rollout=rollout._replace(observation=seen, reward=reward))

        def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
            seen = statistics(batch)
            batch = in_units(params, batch, seen)
            if self.fresh:
                batch = transitions(batch, n=self.n_step, reward_clip=self.reward_clip)
            found = descent(params, target(slow, batch, key), batch, key)
            return found._replace(tree=found.tree | {"seen": seen})

        def descent(params: PyTree, after: Values, batch: Batch, key: Array) -> Gradients:
            config = hyper.read(self, params)
            tree, (report, priorities) = jax.grad(loss, has_aux=True)(
                params["network"], after, batch, key, network=network, atoms=atoms, config=config
            )
            tree, norms = ops.clip_by_global_norm(tree, config.max_gradient_norm)
            told = {"gradient_norm": norms.total, "gradient_clipped": norms.clipped}
            return Gradients({"network": tree}, report | told, priorities if prioritized else None)

        def step(state: TrainState, gradients: Gradients, taken: Array) -> TrainState:
            """Step the network by its gradient; taken: gradient steps before this one."""
            rate = hyper.read(self, state.params).learning_rate * optimizers.remaining(taken, steps)
            before, tree = state.params["network"], gradients.tree["network"]
            change, moments = optimizer.update(tree, state.optimizer["network"], before, learning_rate=rate)
            newest = optax.apply_updates(before, change)
            return state._replace(params=state.params | {"network": newest}, optimizer={"network": moments})

        def refreshed(state: TrainState, taken: Array) -> TrainState:
            """Copy the network to the target network where its period is over; taken: gradient steps so far."""
            now = taken % self.target_period == 0
            slow = jax.tree.map(lambda new, old: jnp.where(now, new, old), state.params["network"], state.slow)
            return state._replace(slow=slow)

        def apply(state: TrainState, gradients: Gradients) -> TrainState:
            after = refreshed(step(state, gradients, state.updates), state.updates + 1)
            params = observed(after.params, gradients.tree["seen"])
            return after._replace(params=params, updates=state.updates + 1)

        def ahead(slow: PyTree, batch: Batch, key: Array) -> Values:
            """Compute the target network's values for all K steps, [K, 1, B, ...]; several batches as one
            product use every core."""
            groups = K // math.gcd(K, TOGETHER)
            with inside_loop():
                each = (pieces(batch, groups), jax.random.split(key, groups))
                values = jax.lax.map(lambda one: target(slow, *one), each)  # [groups, 1, K B / groups, ...]
            return jax.tree.map(lambda x: x.reshape(K, 1, -1, *x.shape[3:]), values)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            if K == 1:
                # a barrier: the same bits as where the gradient is a program of its own
                found = jax.lax.optimization_barrier(gradients(state.params, state.slow, batch, key))
                return Learned(apply(state, found), found.report, found.priorities)

            seen = statistics(batch)
            batch = in_units(state.params, batch, seen)
            still = self.target_period % K == 0  # only the last of these steps can end the target network's period
            after = ahead(state.slow, batch, key) if still else None

            def body(state: TrainState, inputs: tuple[Batch, Values | None, Array]) -> tuple[TrainState, tuple[Report, Array]]:
                piece, after, index = inputs
                own_key = jax.random.fold_in(key, index)
                with inside_loop():
                    found = descent(state.params, after or target(state.slow, piece, own_key), piece, own_key)
                taken = state.updates * K + index
                state = step(state, found, taken)
                return state if still else refreshed(state, taken + 1), (found.report, found.priorities)

            state, (reports, priorities) = jax.lax.scan(body, state, (pieces(batch, K), after, jnp.arange(K)))
            if still:
                state = refreshed(state, (state.updates + 1) * K)
            report = {name: values.mean() for name, values in reports.items()}
            state = state._replace(params=observed(state.params, seen), updates=state.updates + 1)
            return Learned(state, report, priorities.reshape(-1) if prioritized else None)

        @jax.jit
        def value_of(params: PyTree, observation: PyTree) -> tuple[Array, Array | float]:
            values, _ = network.step(params["network"], units.observe(params, observation), (), None)
            return values.q.max(-1), unit(params)

        def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
            """Find |n-step error| of every row on the host, by the values that were acted on; windows end with the rollout."""
            last = jax.tree.map(lambda x: np.ascontiguousarray(x[-1]), rollout.observation)
            after, by = value_of(params, last)
            value = np.concatenate([rollout.extras["value"], np.asarray(after)[None]])
            played = rollout._replace(reward=rollout.reward / np.asarray(by)) if scaled else rollout
            return rollout, first_priorities(played, value, hyper.on_host(self, params))

        table = TableSpec(
            self.replay, self.samples_per_update, n_step=self.n_step, reward_clip=self.reward_clip,
            anneal_batches=num_updates if prioritized and not ladder else None, frames=columns.frames_of(spec),
        )  # fmt: skip
        needs = Needs(self.rollout_length, self.discount, replay=not self.fresh, table=None if self.fresh else table)
        inspect = inspection.of_values(
            network, optimizer, target_period=self.target_period, gradient_steps=K,
            cut=partial(cut_off, network=network, atoms=atoms, config=self) if atoms is not None else None,
        )  # fmt: skip
        return Agent(
            init=init, memory=network.memory, act=act, explore=explore, learn=learn, needs=needs,
            gradients=gradients if K == 1 else None, apply=apply if K == 1 else None,
            process=process if ladder and prioritized else None,
            inspect=lambda state, batch: inspect(state, in_units(state.params, batch, {})),
            trained=("network",),
        )  # fmt: skip


def support_of(config: DQN) -> Array:
    """Build the support [K]: the returns that a distribution is over."""
    if config.value_range is None:
        return ops.wide_support(config.num_atoms)
    return ops.support(*config.value_range, config.num_atoms)


def values_after(slow: PyTree, batch: Batch, key: Array, *, network: QNetwork, config: DQN) -> Values:
    """Evaluate, by the target network, the observations that transitions lead to. [1, B, ...], gradients do not flow."""
    return jax.lax.stop_gradient(_values(slow, batch, 1, _noises(key, config)[2], network))


def loss(
    newest: PyTree, after: Values, batch: Batch, key: Array, *, network: QNetwork, atoms: Array | None, config: DQN
) -> tuple[Array, tuple[Report, Array]]:
    """Compute the weighted mean over the transitions, the report and their new priorities [B]. Gradients flow to `newest`
    alone."""
    rollout = batch.rollout  # T = 1: observation [2, B, ...], all others [1, B]
    weight = ops.row_weights(rollout)
    now_noise, choice_noise, _ = _noises(key, config)
    now = _values(newest, batch, 0, now_noise, network)
    chooser = _values(newest, batch, 1, choice_noise, network) if config.double else after
    best = jnp.argmax(chooser.q, -1)  # [1, B]
    chosen = ops.of_action(now.q, rollout.action)
    if atoms is None:
        target = jax.lax.stop_gradient(rollout.reward + rollout.discount * ops.of_action(after.q, best))
        error = target - chosen
        each, surprise = ops.huber(error, config.error_clip), jnp.abs(error)
    else:
        returns = rollout.reward[..., None] + rollout.discount[..., None] * atoms.reshape(1, 1, -1)
        target_p = ops.categorical_projection(returns, jax.nn.softmax(ops.of_action(after.logits, best)), atoms)
        logp = jax.nn.log_softmax(ops.of_action(now.logits, rollout.action))
        each = surprise = -jnp.sum(target_p * logp, -1)
    total = ops.masked_mean(each * batch.weight[None], weight)
    report = {
        "loss/q": ops.masked_mean(each, weight),
        "q": ops.masked_mean(chosen, weight),
        "priority": ops.masked_mean(surprise, weight),
    }
    return total, (report, jax.lax.stop_gradient(counted(surprise, rollout)[0] + PRIORITY_FLOOR))


def cut_off(slow: PyTree, batch: Batch, *, network: QNetwork, atoms: Array, config: DQN) -> Array:
    """Compute the share of the targets' mass that lies beyond the support, by the target network and without noise. []"""
    batch = transitions(batch, n=config.n_step, reward_clip=config.reward_clip) if config.fresh else batch
    rollout, after = batch.rollout, _values(slow, batch, 1, None, network)
    probabilities = jax.nn.softmax(ops.of_action(after.logits, jnp.argmax(after.q, -1)))
    returns = rollout.reward[..., None] + rollout.discount[..., None] * atoms.reshape(1, 1, -1)
    return inspection.beyond_support(returns, probabilities, atoms, rollout.valid)


def _values(params: PyTree, batch: Batch, t: int, noise: Noise | None, network: QNetwork) -> Values:
    """Evaluate the observations before (t = 0) or after (t = 1) the transitions. [1, B, ...]"""
    observation = jax.tree.map(lambda x: x[t : t + 1], batch.rollout.observation)
    return network.unroll(params, observation, (), jnp.zeros(batch.rollout.reward.shape), noise)[0]


def _noises(key: Array, config: DQN) -> tuple[Noise | None, ...]:
    """Make independent noise for each pass of a noisy network: for what was done, the choice of what follows, the target.

    All rows of a pass share it, as in the paper: with noise of its own for each, an update of Rainbow takes 1.2 ms, not 0.7."""
    return tuple(Noise(k, jnp.ones(())) if config.noisy else None for k in jax.random.split(key, 3))


def epsilons(config: DQN, env_index: np.ndarray, num_envs: int, env_steps: int) -> np.ndarray:
    """Compute the epsilons [B]: annealed from 1 with the steps, or Ape-X's ladder epsilon^(1 + 7 i / (N − 1)), whose middle
    a single one has; 0 where noise explores.

    Where it is mixed, what each environment's is annealed to is dealt out instead of drawn, so that few have the shares too.
    """
    rungs = config.epsilon ** (1.0 + 7.0 * (env_index / (num_envs - 1) if num_envs > 1 else np.full(len(env_index), 0.5)))
    if config.exploration == "ladder":
        return rungs.astype(np.float32)
    left = max(0.0, 1.0 - env_steps / max(1, 10_000 if config.epsilon_steps is None else config.epsilon_steps))
    last = rungs if config.exploration == "anneal-ladder" else np.full(len(env_index), config.epsilon)
    if config.exploration == "mixed":
        shares, values = zip(*MIXED)
        last = np.take(values, np.searchsorted(shares, env_index * GOLDEN % 1.0, side="right"))
    return (0.0 if config.noisy else 1.0) * (last + (1.0 - last) * left).astype(np.float32)


def transitions(batch: Batch, *, n: int, reward_clip: float | None) -> Batch:
    """Turn rollouts [T, B] into T · B transitions of one row each: up to n rows are added up, and windows end with the rollout.

    With n = T these are the targets of asynchronous n-step Q-learning: the last row looks one step ahead, the first T.
    """
    rollout = batch.rollout
    T, B = rollout.reward.shape
    reward = rollout.reward if reward_clip is None else jnp.clip(rollout.reward, -reward_clip, reward_clip)
    total, discount, span = columns.n_step(  # a batch's discount has gamma in it
        reward=reward, discount=rollout.discount, valid=rollout.valid, gamma=1.0, n=n, count=T
    )
    flat = lambda x: x.reshape(1, T * B, *x.shape[2:])
    after = jnp.arange(T)[:, None] + span, jnp.arange(B)[None]
    folded = rollout._replace(
        observation=jax.tree.map(lambda x: jnp.concatenate([flat(x[:-1]), flat(x[after])]), rollout.observation),
        action=jax.tree.map(flat, rollout.action), reward=flat(total), discount=flat(discount), valid=flat(rollout.valid),
        version=flat(rollout.version), weight=jax.tree.map(flat, rollout.weight),
    )  # fmt: skip
    return Batch(folded, jnp.tile(batch.weight, T), ())
