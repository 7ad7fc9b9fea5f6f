import functools
from typing import NamedTuple

import distrax
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from jax import Array

from rookery import ops
from rookery.ops.distributions import for_space, mask_logits


def jitted(ours):
    """Compiled once per shape: running them one primitive at a time takes the tests ten times as long."""
    return ours._replace(**{name: jax.jit(getattr(ours, name)) for name in ours._fields if name != "num_outputs"})


LOW, HIGH = np.array([-2.0, 0.0, 1.0]), np.array([2.0, 5.0, 1.5])
NVEC = [3, 5, 2]
KEY = jax.random.key(3)
AS_IN_A_RUN = {"xla_backend_optimization_level": 3}  # not as the other tests, where tanh(15) is 0.9999998


def distrax_squashed(outputs):
    tanh = distrax.Block(distrax.Tanh(), 1)
    rescale = distrax.Block(distrax.ScalarAffine(shift=(LOW + HIGH) / 2, scale=(HIGH - LOW) / 2), 1)
    normal = distrax.MultivariateNormalDiag(outputs[..., :3], jnp.exp(outputs[..., 3:]))
    return distrax.Transformed(normal, distrax.Chain([rescale, tanh]))


def distrax_joint(make, sizes):
    cuts = np.cumsum(sizes)[:-1].tolist()
    return lambda outputs: distrax.Joint(tuple(make(part) for part in jnp.split(outputs, cuts, -1)))


ORACLES = {
    "categorical": (ops.categorical(4), distrax.Categorical),
    "multi_categorical": (ops.multi_categorical(NVEC), distrax_joint(distrax.Categorical, NVEC)),
    "multi_categorical of one size": (ops.multi_categorical([3, 3]), distrax_joint(distrax.Categorical, [3, 3])),
    "bernoulli": (ops.bernoulli(4), lambda o: distrax.Independent(distrax.Bernoulli(o), 1)),
    "gaussian": (ops.gaussian(3), lambda o: distrax.MultivariateNormalDiag(o[..., :3], jnp.exp(o[..., 3:]))),
    "squashed": (ops.squashed_gaussian(LOW, HIGH), distrax_squashed),
}


class Study(NamedTuple):
    action: Array
    logp: Array
    logp_of_mode: Array
    entropy: Array
    kl: Array
    kl_to_itself: Array
    joint: tuple[Array, Array]  # sample_and_logp


@functools.cache
def study(name):
    """All functions of a distribution in one compilation, for every test below: outputs are [200, 64, num_outputs]."""
    ours, _ = ORACLES[name]

    @jax.jit
    def run(p, q):
        action = ours.sample(KEY, p)
        at_mode = ours.logp(p, ours.mode(p))
        return Study(
            action, ours.logp(p, action), at_mode, ours.entropy(p), ours.kl(p, q), ours.kl(p, p),
            ours.sample_and_logp(KEY, p),
        )  # fmt: skip

    return run


def outputs_for(name, rng, rows=(200, 64)):
    scale = 0.2 if name == "squashed" else 1.0  # a tanh that saturates makes distrax's logp NaN
    return jnp.asarray(scale * rng.normal(size=(*rows, ORACLES[name][0].num_outputs)), jnp.float32)


@pytest.mark.parametrize("name", ORACLES)
def test_logp_entropy_and_kl_equal_those_of_distrax(rng, name):
    p, q = outputs_for(name, rng), outputs_for(name, rng)
    got = study(name)(p, q)

    @jax.jit
    def expect(p, q, action):
        pieces = tuple(jnp.moveaxis(action, -1, 0)) if name.startswith("multi") else action
        theirs = ORACLES[name][1](p)  # a transformed distribution of distrax has no entropy
        entropy = got.entropy if name == "squashed" else theirs.entropy()
        return theirs.log_prob(pieces), entropy, theirs.kl_divergence(ORACLES[name][1](q))

    with jax.numpy_rank_promotion("allow"):
        logp, entropy, kl = expect(p, q, got.action)
    # The inverse of a tanh near 1 has few digits left: theirs and ours then round differently.
    digits = {"rtol": 1e-3, "atol": 1e-2} if name == "squashed" else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(got.logp, logp, **digits)
    np.testing.assert_allclose(got.entropy, entropy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.kl, kl, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.kl_to_itself, np.zeros((200, 64)), atol=1e-5)
    np.testing.assert_allclose(got.joint[0], got.action, rtol=1e-6)
    np.testing.assert_allclose(got.joint[1], logp, **digits)


@pytest.mark.parametrize("name", ORACLES)
def test_entropy_is_minus_the_mean_logp_of_samples_and_the_mode_is_likely(rng, name):
    p = jnp.broadcast_to(0.7 * outputs_for(name, rng, rows=(1, 1)), (200, 64, ORACLES[name][0].num_outputs))
    got = study(name)(p, p)
    noise = 5 * got.logp.std() / np.sqrt(got.logp.size)
    np.testing.assert_allclose(-got.logp.mean(), got.entropy[0, 0], atol=noise + 1e-4)
    if name != "squashed":  # whose mode is the image of u's mode
        assert got.logp_of_mode[0, 0] >= got.logp.max() - 1e-5


@pytest.mark.parametrize("name", ["bernoulli", "squashed"])
def test_a_large_batch_gives_what_its_rows_give_in_small_ones(rng, name):
    """XLA compiles sums over large arrays otherwise, and was found to get log1p(y) + log1p(-y) wrong there."""
    ours, _ = ORACLES[name]
    p, q = outputs_for(name, rng), outputs_for(name, rng)
    got = study(name)(p, q)
    row = jax.jit(lambda p, q, action: (ours.logp(p, action), ours.entropy(p), ours.kl(p, q)))
    for t in (0, 100, 199):
        for large, small in zip((got.logp[t], got.entropy[t], got.kl[t]), row(p[t], q[t], got.action[t])):
            np.testing.assert_allclose(large, small, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "squashed"])
def test_reparameterised_gradients_equal_those_through_sample_and_then_logp(rng, name):
    ours, _ = ORACLES[name]
    apart = jax.grad(lambda o: ours.logp(o, ours.sample(KEY, o)).sum())
    joint = jax.grad(lambda o: ours.sample_and_logp(KEY, o)[1].sum())
    a, b = jax.jit(lambda o: (apart(o), joint(o)))(0.5 * outputs_for(name, rng, rows=(6,)))
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_categorical_samples_have_the_frequencies_of_the_softmax():
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    actions = np.asarray(jitted(ops.categorical(3)).sample(KEY, jnp.broadcast_to(logits, (20_000, 3))))
    assert actions.dtype == np.int32
    np.testing.assert_allclose(np.bincount(actions) / 20_000, [0.1, 0.2, 0.7], atol=0.015)


def test_components_of_a_multi_categorical_are_sampled_independently_with_their_own_frequencies():
    probabilities = [[0.2, 0.8], [0.5, 0.1, 0.4]]
    outputs = jnp.log(jnp.concatenate([jnp.array(p) for p in probabilities]))
    actions = np.asarray(jitted(ops.multi_categorical([2, 3])).sample(KEY, jnp.broadcast_to(outputs, (20_000, 5))))
    for column, expected in zip(actions.T, probabilities):
        np.testing.assert_allclose(np.bincount(column) / 20_000, expected, atol=0.015)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_gaussian_samples_have_the_stated_moments_and_carry_gradients():
    ours = jitted(ops.gaussian(2))
    outputs = jnp.array([1.0, -2.0, jnp.log(0.5), jnp.log(3.0)])
    samples = np.asarray(ours.sample(KEY, jnp.broadcast_to(outputs, (20_000, 4))))
    np.testing.assert_allclose(samples.mean(0), [1, -2], atol=0.1)
    np.testing.assert_allclose(samples.std(0), [0.5, 3], rtol=0.03)
    gradient = jax.grad(lambda o: ours.sample(KEY, o).sum())(outputs)
    np.testing.assert_allclose(gradient[:2], 1.0)
    assert (gradient[2:] != 0).all()


# ----------------------------------------------------------------------------------------------------- masking


def test_illegal_actions_are_impossible_and_the_rest_is_the_distribution_over_the_legal_ones(rng):
    full, short, legal = ops.categorical(6), ops.categorical(3), np.array([0, 1, 0, 0, 1, 1])
    logits = jnp.asarray(5 * rng.normal(size=(3000, 6)), jnp.float32).at[:, 0].add(50.0)

    @jax.jit
    def run(logits):
        masked = mask_logits(logits, jnp.broadcast_to(jnp.asarray(legal), logits.shape))
        kept, fourth, second = logits[:, legal == 1], jnp.full(3000, 4), jnp.full(3000, 1)  # the same action in both
        measure = lambda d, x, a: (d.entropy(x), d.logp(x, a), d.kl(x, jnp.roll(x, 1, 0)))
        actions = full.sample(KEY, masked), full.mode(masked)
        return actions, measure(full, masked, fourth), measure(short, kept, second)

    actions, got, expected = run(logits)
    assert all(legal[np.asarray(action)].all() for action in actions)
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("ours", [ops.categorical(4), ops.multi_categorical([2, 2]), ops.bernoulli(4)])
def test_gradients_through_masked_logits_are_finite_and_zero_for_the_illegal_ones(ours):
    @jax.jit
    @jax.value_and_grad
    def everything(logits, legal):
        masked = mask_logits(logits, legal)
        action = ours.sample(KEY, masked)
        return ours.logp(masked, action) + ours.entropy(masked) + ours.kl(masked, mask_logits(2 * logits, legal))

    for legal in ([1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]):
        legal = np.array(legal)
        value, gradient = everything(jnp.array([0.3, -2.0, 4.0, 1.0]), legal)
        assert np.isfinite(value) and np.isfinite(gradient).all()
        assert not gradient[legal == 0].any()


def test_the_logp_of_an_illegal_action_and_its_gradient_are_finite():
    logp = lambda x: ops.categorical(4).logp(mask_logits(x, jnp.array([1, 0, 1, 1])), jnp.asarray(1))
    value, gradient = jax.jit(jax.value_and_grad(logp))(jnp.array([0.3, -2.0, 4.0, 1.0]))
    assert value < -1e8 and np.isfinite(value) and np.isfinite(gradient).all()


def test_an_illegal_bit_is_never_set_and_half_precision_logits_stay_finite():
    mask = jnp.broadcast_to(jnp.array([True, False]), (500, 2))
    bits = jitted(ops.bernoulli(2)).sample(KEY, mask_logits(jnp.full((500, 2), 20.0), mask))
    assert bits.dtype == jnp.int8 and bits[:, 0].all() and not bits[:, 1].any()
    assert np.isfinite(mask_logits(jnp.zeros((500, 2), jnp.float16), mask)).all()


# ---------------------------------------------------------------------------------------------------- squashing


def test_squashed_logp_is_the_numerical_change_of_variables():
    ours = jitted(ops.squashed_gaussian([-3.0], [5.0]))
    outputs = jnp.array([0.4, -0.3])
    edges = np.linspace(-2.999, 4.999, 4001)
    u = np.arctanh((edges - 1.0) / 4.0)
    normal = np.exp(-0.5 * ((u - 0.4) / np.exp(-0.3)) ** 2) / (np.exp(-0.3) * np.sqrt(2 * np.pi))
    density = normal * np.gradient(u, edges)
    inner = slice(200, -200)
    logp = ours.logp(jnp.broadcast_to(outputs, (4001, 2)), jnp.asarray(edges, jnp.float32)[:, None])
    np.testing.assert_allclose(logp[inner], np.log(density[inner]), atol=1e-4)
    assert np.exp(np.asarray(logp)).sum() * (edges[1] - edges[0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("u", [-15.0, 15.0])
def test_squashed_logp_and_gradients_stay_finite_where_the_tanh_has_saturated(u):
    ours = jitted(ops.squashed_gaussian([-1.0], [1.0]))
    outputs = jnp.array([u, -20.0])
    action, logp = jax.jit(ours.sample_and_logp, compiler_options=AS_IN_A_RUN)(KEY, outputs)
    exact = 20.0 - 0.5 * np.log(2 * np.pi) - 0.5 * jax.random.normal(KEY, (1,))[0] ** 2 - 2 * (np.log(2) - 15)
    assert action == np.sign(u)
    np.testing.assert_allclose(logp, exact, rtol=1e-5)
    at_bound, gradient = jax.value_and_grad(lambda o: ours.logp(o, action))(jnp.array([u, 0.0]))
    assert np.isfinite(at_bound) and np.isfinite(gradient).all()
    gradient = jax.jit(jax.grad(lambda o: ours.sample_and_logp(KEY, o)[1] + ours.entropy(o)))(jnp.array([u, 0.0]))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("mean", "std", "tolerance"), [(0.0, 0.1, 1e-5), (-1.5, 1.0, 1e-5), (3.0, 2.0, 1e-3)])
def test_squashed_entropy_equals_a_fine_quadrature(mean, std, tolerance):
    z = np.linspace(-10, 10, 20001)
    weight = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    magnitude = np.abs(mean + std * z)
    log_det = 2 * (np.log(2) - magnitude - np.log1p(np.exp(-2 * magnitude)))
    expected = np.log(std) + 0.5 * np.log(2 * np.pi * np.e) + np.log(3.0) + (weight * log_det).sum()
    got = jitted(ops.squashed_gaussian([-3.0], [3.0])).entropy(jnp.array([mean, np.log(std)]))
    np.testing.assert_allclose(got, expected, atol=tolerance)


def test_squashed_actions_stay_inside_the_box_and_its_mode_is_the_image_of_the_mean(rng):
    ours = jitted(ops.squashed_gaussian(LOW, HIGH))
    outputs = jnp.asarray(3 * rng.normal(size=(500, 6)), jnp.float32)
    actions = np.asarray(ours.sample(KEY, outputs))
    assert (actions >= LOW - 1e-6).all() and (actions <= HIGH + 1e-6).all()
    expected = (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * np.tanh(outputs[:, :3])
    np.testing.assert_allclose(ours.mode(outputs), expected, atol=2e-6)
    with pytest.raises(ValueError, match="finite bounds"):
        ops.squashed_gaussian([0.0], [np.inf])


# ------------------------------------------------------------------------------------------- products and spaces

NESTED = spaces.Dict(
    move=spaces.Box(-1, 1, (2, 2)),
    aim=spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary([2, 3]))),
    tool=spaces.MultiDiscrete([[2, 3], [4, 5]]),
    zoom=spaces.Box(0, 1, ()),
)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("squash", [False, True])
def test_every_space_gives_actions_of_its_shape_under_any_leading_axes(lead, squash):
    ours = for_space(NESTED, squash=squash)
    assert ours.num_outputs == 3 + 6 + 8 + 14 + 2

    def everything(outputs):
        action, greedy = ours.sample(KEY, outputs), ours.mode(outputs)
        logps = ours.logp(outputs, action), ours.logp(outputs, greedy)
        return action, greedy, (*logps, ours.entropy(outputs), ours.kl(outputs, outputs))

    *actions, numbers = jax.eval_shape(everything, jax.ShapeDtypeStruct((*lead, ours.num_outputs), jnp.float32))
    for action in actions:
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), action) == {
            "move": ((*lead, 2, 2), "float32"),
            "aim": ((lead, "int32"), ((*lead, 2, 3), "int8")),
            "tool": ((*lead, 2, 2), "int32"),
            "zoom": (lead, "float32"),
        }
    assert all(number.shape == lead for number in numbers)


def test_samples_belong_to_their_space(rng):
    space = spaces.Dict(
        box=spaces.Box(-3, 2, (2, 2)), bits=spaces.MultiBinary([2, 3]), many=spaces.MultiDiscrete([[2, 3], [4, 5]])
    )
    ours = for_space(space, squash=True)
    outputs = jnp.asarray(rng.normal(size=(50, ours.num_outputs)), jnp.float32)
    action = jax.device_get(jax.jit(ours.sample)(KEY, outputs))
    action["many"] = action["many"].astype(np.int64)
    assert all(space.contains({name: leaf[i] for name, leaf in action.items()}) for i in range(50))


def test_a_product_adds_up_its_parts_in_sorted_order(rng):
    parts = {"b": ops.categorical(3), "a": (ops.gaussian(1), ops.bernoulli(2))}
    ours, flat = ops.product(parts), (parts["a"][0], parts["a"][1], parts["b"])
    p, q = (jnp.asarray(rng.normal(size=(4, 7)), jnp.float32) for _ in range(2))

    @jax.jit
    def run(p, q):
        action, logp = ours.sample_and_logp(KEY, p)
        leaves, cut = (action["a"][0], action["a"][1], action["b"]), lambda x: (x[:, :2], x[:, 2:4], x[:, 4:])
        expected_logp = sum(part.logp(x, a) for part, x, a in zip(flat, cut(p), leaves))
        expected_entropy = sum(part.entropy(x) for part, x in zip(flat, cut(p)))
        expected_kl = sum(part.kl(x, y) for part, x, y in zip(flat, cut(p), cut(q)))
        got = logp, ours.logp(p, action), ours.entropy(p), ours.kl(p, q)
        return action, got, (expected_logp, expected_logp, expected_entropy, expected_kl)

    action, got, expected = run(p, q)
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="structure"):
        ours.logp(p, {"a": action["a"][0], "b": action["b"]})


def test_each_number_of_a_box_is_in_units_of_its_own_bounds_and_as_it_is_where_it_has_none():
    space = spaces.Box(np.array([0, -np.inf, -1, 2e38], np.float32), np.array([500, np.inf, np.inf, 3e38], np.float32))
    outputs = jnp.array([0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(for_space(space).mode(outputs), [375.0, 0.5, 0.5, 0.5])


def test_parts_of_a_product_do_not_share_random_numbers():
    ours = jitted(ops.product((ops.gaussian(1), ops.gaussian(1))))
    first, second = ours.sample(KEY, jnp.zeros((1000, 4)))
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 0.15


@pytest.mark.parametrize(
    ("space", "squash", "remedy"),
    [
        (spaces.Text(5), False, "Text"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), False, "Sequence"),
        (spaces.Box(0, 255, (2,), np.uint8), False, "MultiDiscrete"),
        (spaces.Box(-np.inf, np.inf, (2,)), True, "squash=False"),
        (spaces.Dict(), False, "non-empty"),
    ],
)
def test_a_space_that_cannot_work_is_refused_with_its_name_and_a_remedy(space: gymnasium.Space, squash, remedy):
    with pytest.raises(TypeError, match=remedy):
        for_space(space, squash=squash)
