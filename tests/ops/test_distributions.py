import distrax
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rookery import ops
from rookery.ops.distributions import for_space, mask_logits


def jitted(ours):
    """Compiled once per shape: running them one primitive at a time takes the tests ten times as long."""
    return ours._replace(**{name: jax.jit(getattr(ours, name)) for name in ours._fields if name != "num_outputs"})


LOW, HIGH = np.array([-2.0, 0.0, 1.0]), np.array([2.0, 5.0, 1.5])
NVEC = [3, 5, 2]
KEY = jax.random.key(3)


def distrax_squashed(outputs):
    tanh = distrax.Block(distrax.Tanh(), 1)
    rescale = distrax.Block(distrax.ScalarAffine(shift=(LOW + HIGH) / 2, scale=(HIGH - LOW) / 2), 1)
    normal = distrax.MultivariateNormalDiag(outputs[..., :3], jnp.exp(outputs[..., 3:]))
    return distrax.Transformed(normal, distrax.Chain([rescale, tanh]))


def distrax_joint(make, sizes):
    cuts = np.cumsum(sizes)[:-1].tolist()
    return lambda outputs: distrax.Joint(tuple(make(part) for part in jnp.split(outputs, cuts, -1)))


ORACLES = {
    "categorical": (jitted(ops.categorical(4)), distrax.Categorical),
    "multi_categorical": (jitted(ops.multi_categorical(NVEC)), distrax_joint(distrax.Categorical, NVEC)),
    "multi_categorical of one size": (
        jitted(ops.multi_categorical([3, 3])),
        distrax_joint(distrax.Categorical, [3, 3]),
    ),
    "bernoulli": (jitted(ops.bernoulli(4)), lambda o: distrax.Independent(distrax.Bernoulli(o), 1)),
    "gaussian": (jitted(ops.gaussian(3)), lambda o: distrax.MultivariateNormalDiag(o[..., :3], jnp.exp(o[..., 3:]))),
    "squashed": (jitted(ops.squashed_gaussian(LOW, HIGH)), distrax_squashed),
}


@pytest.mark.parametrize("name", ORACLES)
def test_logp_entropy_and_kl_equal_those_of_distrax(rng, name):
    ours, oracle = ORACLES[name]
    p, q = (jnp.asarray(rng.normal(size=(4, 5, ours.num_outputs)), jnp.float32) for _ in range(2))
    action = ours.sample(KEY, p)

    @jax.jit
    def expect(p, q, action):
        pieces = tuple(jnp.moveaxis(action, -1, 0)) if name.startswith("multi") else action
        theirs = oracle(p)  # a transformed distribution of distrax has no entropy
        entropy = None if name == "squashed" else theirs.entropy()
        return theirs.log_prob(pieces), theirs.kl_divergence(oracle(q)), entropy

    with jax.numpy_rank_promotion("allow"):
        expected_logp, expected_kl, expected_entropy = expect(p, q, action)
    np.testing.assert_allclose(ours.logp(p, action), expected_logp, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.kl(p, q), expected_kl, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.kl(p, p), np.zeros((4, 5)), atol=1e-6)
    if expected_entropy is not None:
        np.testing.assert_allclose(ours.entropy(p), expected_entropy, rtol=1e-4, atol=1e-5)
    sampled, logp = ours.sample_and_logp(KEY, p)
    np.testing.assert_allclose(sampled, action, rtol=1e-6)
    np.testing.assert_allclose(logp, expected_logp, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ORACLES)
def test_entropy_is_minus_the_mean_logp_of_samples_and_the_mode_is_likely(rng, name):
    ours, _ = ORACLES[name]
    outputs = jnp.asarray(0.7 * rng.normal(size=(ours.num_outputs,)), jnp.float32)
    many = jnp.broadcast_to(outputs, (20_000, ours.num_outputs))
    logp = jax.jit(lambda many: ours.logp(many, ours.sample(KEY, many)))(many)
    noise = 5 * logp.std() / np.sqrt(logp.size)
    np.testing.assert_allclose(-logp.mean(), ours.entropy(outputs), atol=noise + 1e-4)
    if name != "squashed":
        assert ours.logp(outputs, ours.mode(outputs)) >= logp.max() - 1e-5


@pytest.mark.parametrize("name", ORACLES)
def test_a_large_batch_gives_what_its_rows_give_in_small_ones(rng, name):
    """XLA compiles sums over large arrays otherwise, and was found to get log1p(y) + log1p(-y) wrong there."""
    ours, _ = ORACLES[name]
    p, q = (jnp.asarray(rng.normal(size=(200, 64, ours.num_outputs)), jnp.float32) for _ in range(2))
    every = lambda p, q, action: (ours.logp(p, action), ours.entropy(p), ours.kl(p, q))
    action = ours.sample(KEY, p)
    large, small = jax.jit(every)(p, q, action), jax.jit(lambda *x: jax.lax.map(lambda row: every(*row), x))(p, q, action)
    for a, b in zip(large, small):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_reparameterised_gradients_equal_those_through_sample_and_logp_by_hand(rng):
    for name in ("gaussian", "squashed"):
        ours, _ = ORACLES[name]
        outputs = jnp.asarray(0.5 * rng.normal(size=(6, 6)), jnp.float32)
        by_hand = jax.grad(lambda o: ours.logp(o, ours.sample(KEY, o)).sum())(outputs)
        np.testing.assert_allclose(
            jax.grad(lambda o: ours.sample_and_logp(KEY, o)[1].sum())(outputs), by_hand, rtol=1e-3, atol=1e-4
        )


def test_categorical_samples_have_the_frequencies_of_the_softmax():
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    actions = np.asarray(ops.categorical(3).sample(KEY, jnp.broadcast_to(logits, (20_000, 3))))
    assert actions.dtype == np.int32
    np.testing.assert_allclose(np.bincount(actions) / 20_000, [0.1, 0.2, 0.7], atol=0.015)


def test_components_of_a_multi_categorical_are_sampled_independently_with_their_own_frequencies():
    probabilities = [[0.2, 0.8], [0.5, 0.1, 0.4]]
    outputs = jnp.log(jnp.concatenate([jnp.array(p) for p in probabilities]))
    actions = np.asarray(ops.multi_categorical([2, 3]).sample(KEY, jnp.broadcast_to(outputs, (20_000, 5))))
    for column, expected in zip(actions.T, probabilities):
        np.testing.assert_allclose(np.bincount(column) / 20_000, expected, atol=0.015)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_gaussian_samples_have_the_stated_moments_and_carry_gradients():
    ours = ops.gaussian(2)
    outputs = jnp.array([1.0, -2.0, jnp.log(0.5), jnp.log(3.0)])
    samples = np.asarray(ours.sample(KEY, jnp.broadcast_to(outputs, (20_000, 4))))
    np.testing.assert_allclose(samples.mean(0), [1, -2], atol=0.1)
    np.testing.assert_allclose(samples.std(0), [0.5, 3], rtol=0.03)
    gradient = jax.grad(lambda o: ours.sample(KEY, o).sum())(outputs)
    np.testing.assert_allclose(gradient[:2], 1.0)
    assert (gradient[2:] != 0).all()


# ----------------------------------------------------------------------------------------------------- masking


def test_illegal_actions_are_impossible_and_the_rest_is_the_distribution_over_the_legal_ones(rng):
    ours, legal = jitted(ops.categorical(6)), np.array([0, 1, 0, 0, 1, 1])
    logits = jnp.asarray(5 * rng.normal(size=(3000, 6)), jnp.float32).at[:, 0].add(50.0)
    masked = mask_logits(logits, jnp.broadcast_to(jnp.asarray(legal), logits.shape))
    short, kept = jitted(ops.categorical(3)), logits[:, legal == 1]
    assert legal[np.asarray(ours.sample(KEY, masked))].all() and legal[np.asarray(ours.mode(masked))].all()
    np.testing.assert_allclose(ours.entropy(masked), short.entropy(kept), atol=1e-5)
    np.testing.assert_allclose(
        ours.logp(masked, jnp.full(3000, 4)), short.logp(kept, jnp.full(3000, 1)), atol=1e-5, rtol=1e-5
    )
    np.testing.assert_allclose(
        ours.kl(masked, jnp.roll(masked, 1, 0)), short.kl(kept, jnp.roll(kept, 1, 0)), atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize("legal", [[1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
@pytest.mark.parametrize("ours", [ops.categorical(4), ops.multi_categorical([2, 2]), ops.bernoulli(4)])
def test_gradients_through_masked_logits_are_finite_and_zero_for_the_illegal_ones(ours, legal):
    logits, legal = jnp.array([0.3, -2.0, 4.0, 1.0]), jnp.array(legal)

    def everything(logits):
        masked = mask_logits(logits, legal)
        action = ours.sample(KEY, masked)
        return ours.logp(masked, action) + ours.entropy(masked) + ours.kl(masked, mask_logits(2 * logits, legal))

    value, gradient = jax.jit(jax.value_and_grad(everything))(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    assert not gradient[legal == 0].any()


def test_the_logp_of_an_illegal_action_and_its_gradient_are_finite():
    logp = lambda x: ops.categorical(4).logp(mask_logits(x, jnp.array([1, 0, 1, 1])), jnp.asarray(1))
    value, gradient = jax.jit(jax.value_and_grad(logp))(jnp.array([0.3, -2.0, 4.0, 1.0]))
    assert value < -1e8 and np.isfinite(value) and np.isfinite(gradient).all()


def test_an_illegal_bit_is_never_set_and_half_precision_logits_stay_finite():
    mask = jnp.broadcast_to(jnp.array([True, False]), (500, 2))
    bits = ops.bernoulli(2).sample(KEY, mask_logits(jnp.full((500, 2), 20.0), mask))
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
    action, logp = ours.sample_and_logp(KEY, outputs)
    exact = 20.0 - 0.5 * np.log(2 * np.pi) - 0.5 * jax.random.normal(KEY, (1,))[0] ** 2 - 2 * (np.log(2) - 15)
    assert action == np.sign(u)
    np.testing.assert_allclose(logp, exact, rtol=1e-5)
    at_bound, gradient = jax.value_and_grad(lambda o: ours.logp(o, action))(jnp.array([u, 0.0]))
    assert np.isfinite(at_bound) and np.isfinite(gradient).all()
    gradient = jax.grad(lambda o: ours.sample_and_logp(KEY, o)[1] + ours.entropy(o))(jnp.array([u, 0.0]))
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
    ours, _ = ORACLES["squashed"]
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


@pytest.mark.parametrize(("lead", "squash"), [((), False), ((2, 3), False), ((4,), True)])
def test_every_space_gives_actions_of_its_shape_under_any_leading_axes(rng, lead, squash):
    ours = jitted(for_space(NESTED, squash=squash))
    assert ours.num_outputs == 3 + 6 + 8 + 14 + 2
    outputs = jnp.asarray(rng.normal(size=(*lead, ours.num_outputs)), jnp.float32)
    for action in (ours.sample(KEY, outputs), ours.mode(outputs)):
        shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), action)
        assert shapes == {
            "move": ((*lead, 2, 2), "float32"),
            "aim": ((lead, "int32"), ((*lead, 2, 3), "int8")),
            "tool": ((*lead, 2, 2), "int32"),
            "zoom": (lead, "float32"),
        }
        assert ours.logp(outputs, action).shape == lead
    assert ours.entropy(outputs).shape == ours.kl(outputs, outputs).shape == lead


def test_a_product_adds_up_its_parts_in_sorted_order(rng):
    parts = {"b": jitted(ops.categorical(3)), "a": (jitted(ops.gaussian(1)), jitted(ops.bernoulli(2)))}
    ours = jitted(ops.product(parts))
    p, q = (jnp.asarray(rng.normal(size=(4, 7)), jnp.float32) for _ in range(2))
    cut = lambda x: (x[:, :2], x[:, 2:4], x[:, 4:])
    action, logp = ours.sample_and_logp(KEY, p)
    flat, leaves = (parts["a"][0], parts["a"][1], parts["b"]), (action["a"][0], action["a"][1], action["b"])
    expected = sum(part.logp(x, a) for part, x, a in zip(flat, cut(p), leaves))
    np.testing.assert_allclose(ours.logp(p, action), expected, rtol=1e-6)
    np.testing.assert_allclose(logp, expected, rtol=1e-6)
    np.testing.assert_allclose(ours.entropy(p), sum(d.entropy(x) for d, x in zip(flat, cut(p))), rtol=1e-6)
    np.testing.assert_allclose(ours.kl(p, q), sum(d.kl(x, y) for d, x, y in zip(flat, cut(p), cut(q))), rtol=1e-6)
    with pytest.raises(ValueError):
        ours.logp(p, {"a": action["a"][0], "b": action["b"]})


def test_parts_of_a_product_do_not_share_random_numbers():
    ours = ops.product((ops.gaussian(1), ops.gaussian(1)))
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
