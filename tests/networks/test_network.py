"""Acting and learning see the same network; memory, masks and gradients."""

import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_encoders import ATARI, SPACES, VECTOR, fill, sample

from rookery.networks import Network, NetworkConfig, actor_critic
from rookery.types import Spec

spaces = gymnasium.spaces


def build(space, num_outputs=3, gaussian_size=0, **config):
    spec = Spec(space, spaces.Discrete(num_outputs))
    network = actor_critic(spec, num_outputs, NetworkConfig(**config), gaussian_size=gaussian_size)
    network = Network(jax.jit(network.init), network.memory, jax.jit(network.step), jax.jit(network.unroll))
    return network, fill(network.init)


def act(network, params, observation, first):
    """What a collector does: step by step, memory made fresh by hand where an episode starts."""
    T, B = first.shape
    memory, rows = network.memory(B), []
    for t in range(T):
        fresh = network.memory(B)
        memory = jax.tree.map(lambda m, f, t=t: jnp.where(first[t][:, None], f, m), memory, fresh)
        output, memory = network.step(params, jax.tree.map(lambda x, t=t: x[t], observation), memory)
        rows.append(output)
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


@pytest.mark.parametrize(
    "name, core",
    [("vector", "none"), ("vector", "lstm"), ("vector", "gru"), ("nested", "lstm"), ("small image", "gru")],
)
def test_the_unroll_equals_stepping_with_resets_in_the_middle(name, core):
    network, params = build(SPACES[name], core=core, core_size=16)
    observation = sample(SPACES[name], (6, 3))
    first = np.zeros((6, 3), bool)
    first[2, 0] = first[5, 1] = first[3, 1] = True
    stepped = act(network, params, observation, first)
    unrolled = network.unroll(params, observation, network.memory(3), first)
    np.testing.assert_allclose(unrolled.policy, stepped.policy, atol=2e-6)
    np.testing.assert_allclose(unrolled.value, stepped.value, atol=2e-6)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_memory_carries_the_past_until_a_reset_and_not_beyond(core):
    network, params = build(VECTOR, core=core, core_size=16)
    observation = sample(VECTOR, (5, 1))
    other = observation.copy()
    other[0] += 3.0
    first = np.zeros((5, 1))
    first[3] = 1
    before, after = (network.unroll(params, o, network.memory(1), first).value for o in (observation, other))
    assert np.all(np.abs(before - after)[:3] > 1e-4)
    np.testing.assert_array_equal(before[3:], after[3:])


@pytest.mark.parametrize("core, leaves", [("none", 0), ("gru", 1), ("lstm", 2)])
def test_memory_has_one_row_for_each_environment(core, leaves):
    network, _ = build(VECTOR, core=core, core_size=16)
    assert [m.shape for m in jax.tree.leaves(network.memory(5))] == [(5, 16)] * leaves


def test_recurrent_matrices_are_orthogonal_gate_by_gate():
    network, _ = build(VECTOR, core="lstm", core_size=16)
    params = network.init(jax.random.key(0))
    for gate in np.asarray(params["core"]["recurrent"]):
        np.testing.assert_allclose(gate @ gate.T, np.eye(16), atol=1e-5)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_an_illegal_action_has_probability_zero_and_the_mask_is_no_input(wrapped, core):
    space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(3))
    if wrapped:
        space = spaces.Dict(observation=space, previous_action=spaces.Discrete(3), previous_reward=SPACES["scalar"])
    network, params = build(space, core=core)
    observation = sample(space, (4, 2))
    masked = observation["observation"] if wrapped else observation
    masked["action_mask"] = mask = np.broadcast_to(np.array([[1, 0, 1], [0, 0, 1]], np.int8), (4, 2, 3))
    output = network.unroll(params, observation, network.memory(2), np.zeros((4, 2)))
    assert np.all(jax.nn.softmax(output.policy)[mask == 0] == 0) and np.all(np.isfinite(output.policy))
    masked["action_mask"] = np.ones_like(mask)
    free = network.unroll(params, observation, network.memory(2), np.zeros((4, 2)))
    np.testing.assert_array_equal(output.policy[mask == 1], free.policy[mask == 1])
    np.testing.assert_array_equal(output.value, free.value)


def test_the_masks_of_several_components_are_read_one_after_the_other():
    space = spaces.Dict(x=VECTOR, action_mask=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)]))
    network, params = build(space, num_outputs=5)
    observation = sample(space, (1,)) | {"action_mask": (np.array([[1, 0]]), np.array([[0, 1, 1]]))}
    output, _ = network.step(params, observation, ())
    np.testing.assert_array_equal(output.policy[0] == -1e9, [False, True, True, False, False])


def test_a_mask_that_does_not_fit_the_actions_is_refused():
    space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(4))
    with pytest.raises(ValueError, match="action_mask has 4 entries and the policy 3"):
        build(space, num_outputs=3)
    with pytest.raises(ValueError, match="continuous"):
        build(space, num_outputs=4, gaussian_size=2)


def test_the_standard_deviation_is_learned_and_does_not_depend_on_the_observation():
    network, params = build(VECTOR, num_outputs=6, gaussian_size=3, initial_log_std=-0.5)
    output, _ = network.step(params, sample(VECTOR, (4,)), ())
    np.testing.assert_array_equal(output.policy[:, 3:], np.broadcast_to(params["heads"]["log_std"], (4, 3)))
    assert np.all(np.std(output.policy[:, :3], 0) > 0)
    np.testing.assert_array_equal(network.init(jax.random.key(0))["heads"]["log_std"], np.full(3, -0.5, np.float32))


def test_a_new_policy_is_close_to_uniform():
    network, _ = build(VECTOR)
    output, _ = network.step(network.init(jax.random.key(0)), sample(VECTOR, (32,)), ())
    assert 0 < np.abs(output.policy).max() < 0.1 < np.abs(output.value).max()


@pytest.mark.parametrize(
    "name, config",
    [
        ("vector", {}),
        ("vector", {"heads": "shared", "core": "gru", "gaussian_size": 1}),
        ("nested", {"core": "lstm"}),
        ("stack", {}),
        ("stack", {"heads": "separate"}),
        ("stack", {"encoder": "impala", "core": "lstm"}),
        ("grid", {}),
        ("multi-discrete", {"activation": "elu", "hidden": (16,)}),
    ],
)
def test_every_parameter_has_a_gradient(name, config):
    network, params = build(SPACES[name], **config)
    observation = sample(SPACES[name], (4, 3))

    def loss(params):
        output = network.unroll(params, observation, network.memory(3), np.zeros((4, 3)))
        return jnp.sum(jax.nn.log_softmax(output.policy)[..., 0] + output.value**2)

    gradients = jax.jit(jax.grad(loss))(params)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.any(gradient != 0) and np.all(np.isfinite(gradient)), jax.tree_util.keystr(path)


def test_separate_heads_share_nothing_and_shared_heads_an_encoder():
    def value_gradient(**config):
        network, params = build(VECTOR, **config)
        observation = sample(VECTOR, (4,))
        return jax.jit(jax.grad(lambda p: network.step(p, observation, network.memory(4))[0].value.sum()))(params)

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(value_gradient()["policy_encoder"]))
    assert set(value_gradient(heads="shared")) == {"encoder", "heads"}
    assert set(value_gradient(core="gru")) == {"encoder", "core", "heads"}
    atari = actor_critic(Spec(ATARI, spaces.Discrete(6)), 6, NetworkConfig())
    assert set(jax.eval_shape(atari.init, jax.random.key(0))) == {"encoder", "heads"}
    with pytest.raises(ValueError, match="two memories"):
        value_gradient(heads="separate", core="lstm")


def test_a_config_is_imported_without_jax():
    code = "import sys; from rookery.networks import NetworkConfig; assert 'jax' not in sys.modules; NetworkConfig()"
    subprocess.run([sys.executable, "-c", code], check=True)
