"""CURL: InfoNCE, who trains the encoder and who only follows it, and a joint update against plain jax and optax."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces
from test_off_policy import gaussian, q_of

from rookery import ops
from rookery.algorithms import curl
from rookery.algorithms.dqn import DQN
from rookery.algorithms.sac import SAC
from rookery.networks import NetworkConfig
from rookery.networks.config import ViewsConfig
from rookery.networks.views import views_of
from rookery.testing import check_agent
from rookery.types import Batch, Rollout, Spec

B, SIDE, GAMMA = 6, 10, 0.9
SEEN = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
SPEC, CHOICES = Spec(SEEN, spaces.Box(-1, 1, (2,), np.float32)), Spec(SEEN, spaces.Discrete(3))
NETWORK = NetworkConfig(hidden=(8, 8), activation="relu")
CROP = ViewsConfig(kind="crop")
COMMON = {
    "network": NETWORK, "gradient_steps": 1, "batch_size": B, "views": CROP, "contrastive_every": 1, "encoder_polyak": 0.25,
}  # fmt: skip
JOINT = SAC(**COMMON, initial_temperature=0.3)
RAINBOW = DQN(**COMMON, double=True, dueling=True, noisy=True, num_atoms=5, n_step=2)


def spec_of(algorithm):
    return CHOICES if isinstance(algorithm, DQN) else SPEC


@cache
def agent_of(algorithm):
    return algorithm.build(spec_of(algorithm))


@cache
def learn_of(algorithm):
    return jax.jit(agent_of(algorithm).learn)


@cache
def state_of(algorithm):
    return jax.jit(agent_of(algorithm).init)(ops.random.key(1))


def encoder_of(algorithm, params):
    return params["network" if isinstance(algorithm, DQN) else "critic"]["encoder"]


def batch_of(spec=SPEC, seed=0):
    rng = np.random.default_rng(seed)
    choice = isinstance(spec.action, spaces.Discrete)
    action = rng.integers(0, 3, (1, B)).astype(np.int32) if choice else rng.uniform(-1, 1, (1, B, 2)).astype(np.float32)
    ones = np.ones((1, B), np.float32)
    rollout = Rollout(
        observation=rng.integers(0, 256, (2, B, SIDE, SIDE)).astype(np.uint8), action=action,
        reward=rng.normal(size=(1, B)).astype(np.float32), discount=GAMMA * ones, valid=ones, extras={}, memory=(),
        version=np.zeros((1, B), np.int32), stream=(), step=(),
    )  # fmt: skip
    return Batch(rollout, np.ones(B, np.float32), ())


def assert_close(got, wanted, **tolerance):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(one, other, **(tolerance or {"atol": 1e-6, "rtol": 1e-5}))


def same(one, other):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


# ------------------------------------------------------------------------------------------------------- the loss


def test_info_nce_is_the_cross_entropy_of_the_diagonal_row_by_row():
    rng = np.random.default_rng(0)
    query, key, bilinear = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), 40 * rng.normal(size=(3, 3))  # exp would overflow
    wanted = []
    for i in range(5):
        logits = [float(query[i] @ bilinear @ key[j]) for j in range(5)]
        most = max(logits)
        wanted.append(math.log(sum(math.exp(value - most) for value in logits)) + most - logits[i])
    np.testing.assert_allclose(curl.info_nce(*map(jnp.float32, (query, key, bilinear))), wanted, rtol=1e-4, atol=1e-4)


def test_it_starts_at_log_b_with_random_encoders_and_falls_to_less_than_a_third_on_shifted_blobs():
    side, columns = 16, 32
    spec = SPEC._replace(observation=spaces.Box(0, 255, (side, side), np.uint8))
    agent = SAC(**COMMON | {"views": ViewsConfig(kind="shift")}).build(spec)
    state, auxiliary = jax.jit(agent.init)(ops.random.key(1)), agent.auxiliary

    @jax.jit
    def step(state, key):
        keys = jax.random.split(key, 3)
        place, width = jax.random.uniform(keys[0], (2, columns, 3), minval=1.0, maxval=side - 2.0), 1.5
        near = jnp.exp(-0.5 * jnp.square((jnp.arange(side).reshape(1, 1, 1, -1) - place[..., None]) / width))  # [2, B, 3, side]
        light = 255.0 * jnp.einsum("bki,bkj->bij", near[0], near[1])
        image = jnp.stack([jnp.minimum(light, 255.0)] * 2).astype(jnp.uint8)
        rollout = jax.tree.map(lambda x: jnp.resize(x, (*x.shape[:1], columns, *x.shape[2:])), batch_of().rollout)
        found = auxiliary.gradients(state.params, state.slow, Batch(rollout._replace(observation=image), (), ()), keys[1])
        state = auxiliary.apply(state, found.tree)
        follow = lambda old, new: old + 0.05 * (new - old)
        encoder = jax.tree.map(follow, state.slow["critic"]["encoder"], state.params["critic"]["encoder"])
        return state._replace(slow={"critic": state.slow["critic"] | {"encoder": encoder}}), found.report["loss/contrastive"]

    losses = []
    for index in range(200):
        state, loss = step(state, ops.random.key(index))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(math.log(columns), rel=0.05)
    assert np.mean(losses[-20:]) < 0.3 * math.log(columns)


# ------------------------------------------------------------------------------------- who is trained, who follows


@pytest.mark.parametrize("algorithm", [JOINT, RAINBOW], ids=["sac", "rainbow"])
def test_the_momentum_encoder_goes_a_share_of_the_way_and_gets_no_gradient(algorithm):
    agent, state, batch = agent_of(algorithm), state_of(algorithm), batch_of(spec_of(algorithm))
    momentum = (lambda slow: slow["momentum"]) if isinstance(algorithm, DQN) else (lambda slow: slow["critic"]["encoder"])
    moved = jax.tree.map(lambda x: x + 1.0, momentum(state.slow))
    within = {"momentum": moved} if isinstance(algorithm, DQN) else {"critic": state.slow["critic"] | {"encoder": moved}}
    slow = state.slow | within
    after = jax.jit(agent.auxiliary.alone)(state._replace(slow=slow), batch, ops.random.key(3)).state
    wanted = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, moved, encoder_of(algorithm, after.params))
    assert_close(momentum(after.slow), wanted)
    of_loss = lambda slow: agent.auxiliary.gradients(state.params, slow, batch, ops.random.key(2)).report["loss/contrastive"]
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(jax.jit(jax.grad(of_loss))(slow)))


def test_the_actors_loss_gives_the_encoder_no_gradient_and_the_critics_does():
    config = dataclasses.replace(JOINT, views=ViewsConfig(), contrastive_every=0)
    agent, batch = agent_of(config), batch_of()
    state, find = state_of(config), jax.jit(agent.gradients)
    assert set(state.params["actor"]["encoder"]) == {"dense_0", "dense_1"}, "the actor has no convolutions of its own"
    batch = batch._replace(rollout=batch.rollout._replace(discount=np.zeros((1, B), np.float32)))  # targets are rewards
    other = state.params | {"actor": jax.tree.map(lambda x: 3.0 * x + 0.1, state.params["actor"])}
    one, two = (find(params, state.slow, batch, ops.random.key(0)).tree for params in (state.params, other))
    assert not same(one["actor"], two["actor"])
    assert_close(one["critic"], two["critic"])
    assert all(np.any(leaf) for leaf in jax.tree.leaves(one["critic"]["encoder"]))


def test_vectors_keep_an_encoder_for_each_network_and_images_do_where_it_is_asked_for():
    apart = dataclasses.replace(NETWORK, heads="separate")
    separate = dataclasses.replace(JOINT, views=ViewsConfig(), contrastive_every=0, network=apart)
    assert "image_0" in jax.eval_shape(separate.build(SPEC).init, ops.random.key(0)).params["actor"]["encoder"]
    with pytest.raises(ValueError, match=r"an encoder that actor and critics share.*--network.heads shared"):
        dataclasses.replace(separate, views=CROP, contrastive_every=1).build(SPEC)
    with pytest.raises(ValueError, match=r"--contrastive-every tells two views.*use --views.kind shift"):
        dataclasses.replace(JOINT, views=ViewsConfig()).build(SPEC)


# ------------------------------------------------------------------------------------------------ the joint update


def encoded(params, image):
    """One convolution and a layer, as they are written down."""
    layers, x = params["image_0"], image.astype(jnp.float32)[..., None] / 255.0
    kernel = layers["conv_0"]["kernel"]
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jnp.maximum(x + layers["conv_0"]["bias"][None, None, None], 0.0).reshape(len(image), -1)
    x = jnp.maximum(x @ layers["dense"]["kernel"] + layers["dense"]["bias"][None], 0.0)
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)


def reference(state, batch, key):
    """SAC's three losses at the same parameters, each with an Adam; then InfoNCE at what they made, with another."""
    alone_key, contrast_key = jax.random.split(key)
    views_key, learn_key = jax.random.split(alone_key)
    views, rollout = views_of(SPEC, CROP, "auto"), batch.rollout
    before, after = views.random(views_key, rollout.observation)
    critic_key, actor_key = jax.random.split(jax.random.split(learn_key, 1)[0])
    params, slow = state.params, state.slow["critic"]
    alpha, features = jnp.exp(params["temperature"]["log"]), lambda critic, seen: jnp.tanh(encoded(critic["encoder"], seen))
    first = jax.random.normal(jax.random.split(critic_key)[0], (B, 2))
    then, logp = gaussian(params["actor"], features(params["critic"], after), first)
    worth = q_of(slow["heads"], features(slow, after), then).min(0) - alpha * logp
    target, noise = rollout.reward[0] + rollout.discount[0] * worth, jax.random.normal(actor_key, (B, 2))

    def of_critic(p):
        return jnp.mean(0.5 * jnp.sum((q_of(p["heads"], features(p, before), rollout.action[0]) - target[None]) ** 2, 0))

    def of_actor(p):
        seen = features(params["critic"], before)
        action, logp = gaussian(p, seen, noise)
        return jnp.mean(alpha * logp - q_of(params["critic"]["heads"], seen, action).min(0))

    logp = gaussian(params["actor"], features(params["critic"], before), noise)[1]
    losses = {"critic": of_critic, "actor": of_actor, "temperature": lambda p: -p["log"] * jnp.mean(logp - 2.0)}

    def stepped(loss, p, rate):
        change, _ = optax.adam(rate).update(jax.grad(loss)(p), optax.adam(rate).init(p))
        return optax.apply_updates(p, change)

    made = {name: stepped(loss, params[name], 3e-4) for name, loss in losses.items()}
    share = lambda by: lambda old, new: (1 - by) * old + by * new
    shares = {"encoder": 0.25, "heads": 0.005}
    followed = {name: jax.tree.map(share(by), slow[name], made["critic"][name]) for name, by in shares.items()}
    query_key, key_key = jax.random.split(contrast_key)
    query, positive = (views.random(k, jnp.asarray(rollout.observation[0])) for k in (query_key, key_key))

    def contrast(p):
        logits = encoded(p["encoder"], query) @ p["bilinear"] @ encoded(followed["encoder"], positive).T
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(B)).mean()

    moved = stepped(contrast, {"encoder": made["critic"]["encoder"], "bilinear": params["contrastive"]["bilinear"]}, 1e-3)
    made["critic"] |= {"encoder": moved["encoder"]}
    return made | {"contrastive": {"bilinear": moved["bilinear"]}}, {"critic": followed}


def test_a_joint_update_is_that_of_the_paper_written_plainly():
    state, batch, key = state_of(JOINT), batch_of(), ops.random.key(5)
    state = state._replace(slow=jax.tree.map(lambda x: 0.9 * x, state.slow))
    made, followed = jax.jit(reference)(state, batch, key)
    learned = learn_of(JOINT)(state, batch, key).state
    for name in agent_of(JOINT).trained:
        for got, wanted in zip(jax.tree.leaves(learned.params[name]), jax.tree.leaves(made[name]), strict=True):
            # where a gradient is 0 to rounding (LayerNorm's null direction), Adam's first step is a sign: up to two rates apart
            np.testing.assert_allclose(got, wanted, atol=2.6e-3, err_msg=name)
            apart = np.abs(np.asarray(got) - np.asarray(wanted)) > 5e-6 + 2e-4 * np.abs(np.asarray(wanted))
            assert apart.mean() < 0.02, f"{name}: {apart.mean():.2%} of {got.shape}"
    assert_close(learned.slow, followed, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("algorithm", [JOINT, RAINBOW], ids=["sac", "rainbow"])
def test_an_update_alone_and_a_gradient_of_the_second_learner_without_lag_are_the_joint_update(algorithm):
    agent, state, batch = agent_of(algorithm), state_of(algorithm), batch_of(spec_of(algorithm))
    keys = jax.random.split(ops.random.key(7))
    after = jax.jit(agent.auxiliary.alone)(state, batch, keys[0]).state
    found = jax.jit(agent.auxiliary.gradients)(after.params, after.slow, batch, keys[1])
    apart = jax.jit(agent.auxiliary.apply)(after, found.tree)
    joint = learn_of(algorithm)(state, batch, ops.random.key(7))
    assert apart.updates == joint.state.updates == 1
    assert not same(encoder_of(algorithm, after.params), encoder_of(algorithm, apart.params))
    assert_close(apart, joint.state, atol=2e-5, rtol=1e-3)
    assert found.report["loss/contrastive"] == pytest.approx(float(joint.report["loss/contrastive"]), rel=1e-4)


def test_contrastive_steps_come_every_so_many_updates():
    config = dataclasses.replace(JOINT, contrastive_every=2)
    state, learn = state_of(config), learn_of(config)
    for update in (1, 2, 3):
        after = learn(state, batch_of(), ops.random.key(update)).state
        assert same(after.params["contrastive"], state.params["contrastive"]) == (update % 2 == 1)
        state = after


def test_an_agent_with_views_and_without_contrastive_steps_keeps_the_contracts():
    check_agent(agent_of(dataclasses.replace(JOINT, contrastive_every=0)), SPEC, num_envs=2, same_update=False)
