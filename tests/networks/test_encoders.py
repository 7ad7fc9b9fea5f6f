"""Every space is read, or refused with a reason."""

import math

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks import NetworkConfig, Output, actor_critic
from rookery.networks.encoders import Encoder, leaves
from rookery.networks.network import orthogonal
from rookery.networks.q_network import q_network
from rookery.spaces import with_previous
from rookery.types import Spec

spaces = gymnasium.spaces
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SPACES = {
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "vector": VECTOR,
    "double vector": spaces.Box(-1, 1, (5,), np.float64),
    "matrix": spaces.Box(-1, 1, (3, 12), np.float32),
    "board": spaces.Box(0, 1, (10, 5), np.uint8),
    "grid": spaces.Box(0, 1, (10, 10, 6), np.bool_),
    "small image": spaces.Box(0, 255, (3, 16, 12), np.uint8),
    "grey image": spaces.Box(0, 255, (40, 44), np.uint8),
    "colour image": spaces.Box(0, 255, (36, 52, 3), np.uint8),
    "stack": spaces.Box(0, 255, (4, 44, 44), np.uint8),
    "colour stack": spaces.Box(0, 255, (2, 44, 44, 3), np.uint8),
    "float image": spaces.Box(0, 1, (40, 40, 1), np.float32),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi-discrete grid": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "nested": spaces.Dict(
        camera=spaces.Box(0, 255, (40, 40, 3), np.uint8),
        body=spaces.Dict(position=VECTOR, contact=spaces.MultiBinary(2)),
        goal=spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (), np.float32)]),
    ),
}


def sample(space, shape, seed=0):
    """Observations with leading axes `shape`, as a pool would give them: plain dicts and tuples of arrays."""
    if isinstance(space, spaces.Dict):
        return {name: sample(part, shape, seed + i) for i, (name, part) in enumerate(space.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, shape, seed + i) for i, part in enumerate(space))
    space.seed(seed)
    return np.stack([space.sample() for _ in range(int(np.prod(shape)))]).reshape(*shape, *space.shape)


def fill(init, *arguments):
    """Parameters of the shapes that `init` would give, random, and without the seconds that compiling it takes."""
    shapes, rng = jax.eval_shape(init, jax.random.key(0), *arguments), np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(0, np.prod(leaf.shape[:-1]) ** -0.5, leaf.shape).astype(np.float32), shapes
    )


def encoder_of(space, observation, **config):
    encoder = Encoder(leaves(space, config.get("encoder", "auto")), NetworkConfig(**config))
    return jax.jit(encoder.apply), fill(encoder.init, observation)


def encode(space, observation, **config):
    apply, params = encoder_of(space, observation, **config)
    return np.asarray(apply(params, observation))


@pytest.mark.parametrize("name", SPACES)
def test_every_space_can_be_acted_on_and_learned_from(name):
    space = SPACES[name]
    network = actor_critic(Spec(space, spaces.Discrete(3)), 3, NetworkConfig())
    params = jax.eval_shape(network.init, jax.random.key(0))
    output, memory = jax.eval_shape(network.step, params, sample(space, (2,)), network.memory(2))
    assert (output.policy.shape, output.value.shape, memory) == ((2, 3), (2,), ())
    rows = jax.eval_shape(network.unroll, params, sample(space, (3, 2)), (), np.zeros((3, 2), bool))
    assert (rows.policy.shape, rows.value.shape) == ((3, 2, 3), (3, 2))
    assert rows.policy.dtype == rows.value.dtype == jnp.float32


@pytest.mark.parametrize("name", ["scalar", "grid", "multi-discrete grid", "multi-binary", "colour stack"])
def test_different_observations_are_told_apart(name):
    one, other = encode(SPACES[name], sample(SPACES[name], (2,), seed=3))
    assert np.all(np.isfinite(one)) and np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize(
    "name, kind, layout",
    [
        ("vector", "numbers", ""),
        ("matrix", "numbers", ""),
        ("board", "numbers", ""),
        ("grid", "small", "HWC"),
        ("small image", "small", "CHW"),
        ("grey image", "compact", "HW"),
        ("colour image", "compact", "HWC"),
        ("stack", "nature", "CHW"),
        ("colour stack", "nature", "NHWC"),
        ("float image", "compact", "HWC"),
        ("discrete", "one_hot", ""),
    ],
)
def test_the_size_of_an_image_decides_how_it_is_read(name, kind, layout):
    (leaf,) = leaves(SPACES[name])
    assert (leaf.kind, leaf.layout) == (kind, layout)


@pytest.mark.parametrize(
    "side, kind, left",
    [(8, "small", 6), (23, "small", 21), (24, "compact", 2), (43, "compact", 7), (44, "nature", 2), (64, "nature", 4)],
)
def test_frames_of_any_side_leave_room_to_see_where_things_are(side, kind, left):
    """Three colour frames, as the option pixels= gives them; `left` pixels a side after the convolutions, counted by hand."""
    frames = spaces.Box(0, 255, (3, side, side, 3), np.uint8)
    (leaf,) = leaves(frames)
    channels = {"small": 16, "compact": 64, "nature": 64}[kind]
    assert leaf.kind == kind
    assert shapes_of(frames, "auto")["encoder/image_0/dense/kernel"][0] == left * left * channels


def test_categories_become_one_hots_counted_from_their_start():
    def identity(space, observation):
        return encode(space, observation, hidden=())

    np.testing.assert_array_equal(identity(spaces.Discrete(3, start=2), np.array([2, 4])), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(identity(spaces.MultiDiscrete([2, 3]), np.array([[1, 0]])), [[0, 1, 1, 0, 0]])


def test_bytes_are_divided_by_their_bound_and_other_numbers_left_alone():
    ram, board = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(0, 1, (2,), np.uint8)
    np.testing.assert_allclose(encode(ram, np.array([[255, 0]], np.uint8), hidden=()), [[1, 0]])
    np.testing.assert_allclose(encode(board, np.array([[1, 0]], np.uint8), hidden=()), [[1, 0]])
    np.testing.assert_allclose(encode(VECTOR, np.array([[300, -2, 0, 1]], np.float32), hidden=()), [[300, -2, 0, 1]])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_every_leaf_of_a_nested_observation_matters(core):
    space = SPACES["nested"]
    observation = sample(space, (1,))
    apply, params = encoder_of(space, observation, core=core)
    features = apply(params, observation)
    paths, structure = jax.tree.flatten(observation)
    for index in range(len(paths)):
        changed = list(paths)
        changed[index] = (1 - changed[index] if changed[index].max() <= 1 else 2 - changed[index]).astype(
            paths[index].dtype
        )
        assert not np.allclose(apply(params, jax.tree.unflatten(structure, changed)), features)


def shapes_of(space, encoder="auto", **config):
    """The shapes of an actor-critic's kernels, by path."""
    network = actor_critic(Spec(space, spaces.Discrete(6)), 6, NetworkConfig(encoder=encoder, **config))
    params = jax.eval_shape(network.init, jax.random.key(0))
    named = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in named}


PREVIOUS = with_previous(Spec(ATARI, spaces.Discrete(6))).observation


def test_what_stands_beside_an_image_goes_to_the_core_with_it():
    shapes = shapes_of(PREVIOUS, core="lstm", core_size=512)
    assert shapes["core/input"] == (512 + 6 + 1, 4 * 512)
    assert {path.split("/")[1] for path in shapes if path.startswith("encoder/")} == {"image_0"}, "and through no layer before"


def test_without_a_core_a_layer_as_wide_as_the_images_features_mixes_them():
    shapes = shapes_of(PREVIOUS)
    assert shapes["encoder/mixed/kernel"] == (512 + 6 + 1, 512) and shapes["heads/policy/kernel"] == (512, 6)
    two = spaces.Dict(far=ATARI, near=spaces.Box(0, 255, (10, 10, 3), np.uint8))
    assert shapes_of(two)["encoder/mixed/kernel"] == (512 + 128, 512)
    assert shapes_of(two, core="gru", core_size=32)["core/input"] == (512 + 128, 3 * 32)


def test_many_numbers_beside_an_image_go_through_a_layer_and_few_do_not():
    space = spaces.Dict(image=ATARI, few=spaces.Box(-1, 1, (8,), np.float32), many=spaces.Box(-1, 1, (9,), np.float32))
    shapes = shapes_of(space, hidden=(256, 32))
    assert shapes["encoder/numbers_2/kernel"] == (9, 32) and shapes["encoder/mixed/kernel"] == (512 + 8 + 32, 512)
    assert shapes_of(space, hidden=())["encoder/mixed/kernel"] == (512 + 8 + 9, 512)


def test_an_image_reads_the_same_in_both_layouts():
    last = spaces.Box(0, 255, (40, 44, 3), np.uint8)
    first = spaces.Box(0, 255, (3, 40, 44), np.uint8)
    image = sample(last, (2,))
    np.testing.assert_allclose(encode(last, image), encode(first, image.transpose(0, 3, 1, 2)), atol=1e-5)


def test_the_impala_encoder_reads_images_of_any_size():
    assert encode(SPACES["stack"], sample(SPACES["stack"], (2,)), encoder="impala").shape == (2, 256)
    assert encode(SPACES["small image"], sample(SPACES["small image"], (2,)), encoder="impala").shape == (2, 256)


def test_the_mlp_encoder_flattens_images():
    assert [leaf.kind for leaf in leaves(ATARI, "mlp")] == ["numbers"]


def test_the_nature_network_has_the_known_number_of_parameters():
    network = actor_critic(Spec(ATARI, spaces.Discrete(6)), 6, NetworkConfig())
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 1_687_719


def test_the_shallow_network_has_the_number_of_parameters_counted_by_hand():
    shapes = shapes_of(ATARI, encoder="shallow")
    convolutions = (8 * 8 * 4 * 16 + 16) + (4 * 4 * 16 * 32 + 32)  # 84 -> 20 -> 9
    heads = (256 * 6 + 6) + (256 + 1)
    assert sum(map(math.prod, shapes.values())) == convolutions + (9 * 9 * 32 * 256 + 256) + heads


@pytest.mark.parametrize("encoder, least", [("nature", 36), ("shallow", 20), ("compact", 18), ("small", 3)])
def test_the_least_side_of_an_image_is_that_which_leaves_one_pixel(encoder, least):
    square = lambda side: spaces.Box(0, 255, (side, side, 1), np.uint8)
    channels = {"nature": 64, "shallow": 32, "compact": 64, "small": 16}[encoder]
    assert shapes_of(square(least), encoder)["encoder/image_0/dense/kernel"][0] == channels
    with pytest.raises(ValueError, match=f"{encoder!r} needs sides >= {least}"):
        leaves(square(least - 1), encoder)


def test_hidden_layers_are_orthogonal_with_gain_sqrt_2_and_zero_bias():
    encoder = Encoder(leaves(VECTOR), NetworkConfig(hidden=(64, 32)))
    gains = encoder.init(jax.random.key(0), np.zeros((1, 4), np.float32))["params"]
    for layer in jax.jit(orthogonal)(jax.random.key(1), gains).values():
        kernel = np.asarray(layer["kernel"])
        gram = kernel.T @ kernel if kernel.shape[0] > kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(gram, 2 * np.eye(len(gram)), atol=1e-5)
        assert not np.any(layer["bias"])


def test_the_activation_is_the_chosen_one():
    observation = sample(VECTOR, (8,))
    relu, tanh = (encode(VECTOR, observation, activation=name) for name in ("relu", "tanh"))
    assert relu.min() == 0 and tanh.min() < 0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(x=VECTOR, words=spaces.Text(10)),
        spaces.Dict(x=VECTOR, words=spaces.Sequence(spaces.Discrete(3))),
        spaces.Dict(x=VECTOR, words=spaces.Graph(spaces.Discrete(3), None)),
    ],
)
def test_a_space_that_cannot_be_read_is_refused_by_name_with_a_remedy(space):
    with pytest.raises(TypeError, match=r"observation\['words'\] is a .* torso"):
        actor_critic(Spec(space, spaces.Discrete(2)), 2, NetworkConfig())


def test_an_encoder_that_does_not_fit_the_space_is_refused():
    with pytest.raises(ValueError, match="has none; use 'auto'"):
        actor_critic(Spec(VECTOR, spaces.Discrete(2)), 2, NetworkConfig(encoder="impala"))
    with pytest.raises(ValueError, match="sides >= 36"):
        actor_critic(Spec(SPACES["small image"], spaces.Discrete(2)), 2, NetworkConfig(encoder="nature"))
    with pytest.raises(TypeError, match="nothing to encode"):
        only_mask = spaces.Dict(action_mask=spaces.MultiBinary(2))
        actor_critic(Spec(only_mask, spaces.Discrete(2)), 2, NetworkConfig())


class Doubling(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.Dense(7)(2.0 * observation)


@pytest.mark.parametrize("core, heads", [("none", "auto"), ("lstm", "auto"), ("none", "separate")])
def test_a_flax_module_can_be_the_torso(core, heads):
    module = Doubling()
    network = actor_critic(
        Spec(VECTOR, spaces.Discrete(3)), 3, NetworkConfig(core=core, heads=heads), torso=(module.init, module.apply)
    )
    params = fill(network.init)
    observation = sample(VECTOR, (5,))
    output, _ = jax.jit(network.step)(params, observation, network.memory(5))
    assert output.policy.shape == (5, 3)
    if core == "none" and heads == "auto":
        features = module.apply(params["encoder"], observation)
        value = (features @ params["heads"]["value"]["kernel"] + params["heads"]["value"]["bias"][None])[:, 0]
        np.testing.assert_allclose(output.value, value, rtol=1e-5)


def test_a_torso_reads_a_space_that_no_encoder_can_and_must_give_rows_of_features():
    space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(3))
    spec = Spec(space, spaces.Discrete(3))
    torso = (
        lambda key, observation: {"w": jnp.ones((4, 2))},
        lambda params, observation: observation["x"] @ params["w"],
    )
    network = actor_critic(spec, 3, NetworkConfig(), torso=torso)
    params = network.init(jax.random.key(0))
    observation = sample(space, (2,)) | {"action_mask": np.array([[1, 0, 1], [0, 0, 1]], np.int8)}
    output, _ = network.step(params, observation, ())
    np.testing.assert_array_equal(output.policy == -1e9, observation["action_mask"] == 0)
    with pytest.raises(ValueError, match="must give features"):
        actor_critic(spec, 3, NetworkConfig(), torso=(torso[0], lambda params, o: o["x"][0])).init(jax.random.key(0))


def heads_of_own(params, observation):
    x = observation["x"] @ params["w"]  # [B, 3]
    return Output(policy=x, value=params["scale"] * x.sum(-1))


OWN_HEADS = (lambda key, observation: {"w": jnp.ones((4, 3)), "scale": jnp.array(2.0)}, heads_of_own)


def test_a_torso_that_gives_policy_and_value_is_the_whole_network_and_masks_still_hold():
    space = spaces.Dict(x=VECTOR, action_mask=spaces.MultiBinary(3))
    network = actor_critic(Spec(space, spaces.Discrete(3)), 3, NetworkConfig(), torso=OWN_HEADS)
    params = network.init(jax.random.key(0))
    assert set(params) == {"encoder"}, "no heads of ours"
    observation = sample(space, (2, 5)) | {"action_mask": np.broadcast_to(np.array([1, 0, 1], np.int8), (2, 5, 3))}
    output = jax.jit(network.unroll)(params, observation, (), np.zeros((2, 5)))
    expected = heads_of_own(params["encoder"], observation)
    np.testing.assert_allclose(output.value, expected.value, rtol=1e-5)
    np.testing.assert_allclose(output.policy[..., [0, 2]], expected.policy[..., [0, 2]], rtol=1e-5)
    assert np.all(output.policy[..., 1] == -1e9)


def test_heads_of_the_users_that_do_not_fit_are_refused_with_the_shapes():
    spec = Spec(spaces.Dict(x=VECTOR), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"gives a policy of shape \(3, 3\) for a batch of 3, expected \(3, 2\)"):
        actor_critic(spec, 2, NetworkConfig(), torso=OWN_HEADS).init(jax.random.key(0))
    for config in (NetworkConfig(core="gru"), NetworkConfig(heads="separate")):
        with pytest.raises(ValueError, match="is the whole network"):
            actor_critic(spec, 3, config, torso=OWN_HEADS).init(jax.random.key(0))
    with pytest.raises(ValueError, match="for actor-critics"):
        q_network(spec, NetworkConfig(), torso=OWN_HEADS).init(jax.random.key(0))
