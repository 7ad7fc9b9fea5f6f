"""A policy is called with one observation or a batch, keeps its memory if asked, and says what does not fit."""

import jax
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import spaces
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN
from rookery.algorithms.vtrace import VTrace
from rookery.envs.options import PoolOptions
from rookery.envs.pools.adapted import adapted_spec
from rookery.networks import NetworkConfig
from rookery.workers.acting.policy import Policy

SMALL = NetworkConfig(hidden=(4,))
ODD = gs.Dict(
    image=gs.Box(0, 255, (8, 8, 3), np.uint8), parts=gs.Tuple([gs.Discrete(4, start=2), gs.Box(-1, 1, (2,), np.float64)]),
    action_mask=gs.MultiBinary(5),
)  # fmt: skip
CHOICES = gs.MultiDiscrete([2, 3], start=[5, 1])


def untrained(algorithm, observation, action, *, pool=None, **options):
    spec = spaces.spec_of(observation, action, "untrained")
    spec = adapted_spec(spec, pool) if pool else spec
    agent = algorithm.build(spec)
    return Policy(agent, spec, jax.jit(agent.init)(jax.random.key(1)).params, **options)


@pytest.fixture(scope="module")
def odd():
    """A policy for nested spaces with a mask; none may change it but by calls."""
    return untrained(A2C(network=SMALL), ODD, CHOICES)


def odd_observation(mask=(1, 1, 1, 1, 1), seed=0):
    ODD.seed(seed)
    return ODD.sample() | {"action_mask": np.array(mask, np.int8)}


def batch_of(*observations):
    return jax.tree.map(lambda *x: np.stack(x), *observations)


def test_raw_observations_give_raw_legal_actions_of_nested_spaces(odd):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mask = [*rng.permutation([1, 0]).tolist(), *rng.permutation([1, 1, 0]).tolist()]
        action, _ = odd(odd_observation(mask, seed), explore=1.0)
        assert CHOICES.contains(action) and mask[action[0] - 5] and mask[2 + action[1] - 1]


def test_a_batch_is_acted_for_as_its_rows_are():
    box = gs.Box(-2, 2, (2,), np.float32)
    network = NetworkConfig(hidden=(4,), core="lstm", core_size=4)
    policy = untrained(VTrace(network=network, previous=True), box, gs.Discrete(3, start=7))
    rows = np.random.default_rng(0).uniform(-2, 2, (3, 4, 2)).astype(np.float32)
    memory, memories = None, [None] * 4
    for t in range(3):
        action, memory = policy(rows[t], memory, reward=np.arange(4.0))
        assert action.shape == (4,) and set(action.tolist()) <= {7, 8, 9}
        for i in range(4):
            one, memories[i] = policy(rows[t, i], memories[i], reward=float(i))
            assert np.ndim(one) == 0 and one == action[i]
            jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b[0], rtol=1e-5, atol=1e-6), memory, memories[i])
    begun, _ = policy(rows[0], memory, first=[True] * 4)
    np.testing.assert_array_equal(begun, policy(rows[0])[0])
    with pytest.raises(ValueError, match="that of 4 environments, and the observation of 2"):
        policy(rows[0, :2], memory)


def test_batches_of_dicts_and_tuples_have_the_axis_on_every_leaf(odd):
    batch = batch_of(*(odd_observation((1, 0, 0, 1, 0), seed) for seed in range(3)))
    action, _ = odd(batch)
    np.testing.assert_array_equal(action, [[5, 2]] * 3)
    actions = gs.Dict(force=gs.Box(-1, 1, (2,)), gear=gs.Discrete(2, start=1))
    nested, _ = untrained(A2C(network=SMALL), gs.Discrete(3), actions)(np.array([0, 1, 2, 0]))
    assert nested["force"].shape == (4, 2) and nested["gear"].shape == (4,) and set(nested["gear"]) <= {1, 2}


def test_frames_are_stacked_for_a_batch_as_for_one():
    policy = untrained(A2C(network=SMALL), gs.Box(-1, 1, (2,)), gs.Discrete(4), pool=PoolOptions(frame_stack=3))
    rows, memory, alone = np.random.default_rng(0).uniform(-1, 1, (4, 2, 2)).astype(np.float32), None, None
    for t in range(4):
        action, memory = policy(rows[t], memory)
        one, alone = policy(rows[t, 1], alone)
        assert action[1] == one
    np.testing.assert_allclose(memory[0][1], rows[1:, 1])


# ---------------------------------------------------------------------------------------------------------- act


def test_act_samples_from_a_stream_of_its_own_that_a_seed_begins_again():
    policy = untrained(A2C(network=SMALL), gs.Box(-1, 1, (2,)), gs.Discrete(50), seed=3)
    seen = np.zeros(2, np.float32)
    drawn = [int(policy.act(seen)) for _ in range(8)]
    assert len(set(drawn)) > 4
    policy.reset()
    assert [int(policy.act(seen)) for _ in range(8)] != drawn, "another episode is not the same one"
    policy.reset(seed=3)
    for expected in drawn:
        policy(seen, explore=1.0)  # other calls do not change what act draws
        assert policy.act(seen) == expected
    assert {int(policy.act(seen, deterministic=True)) for _ in range(5)} == {int(policy(seen)[0])}


def test_act_keeps_its_memory_until_reset():
    network = NetworkConfig(hidden=(4,), core="gru", core_size=4)
    policy = untrained(VTrace(network=network), gs.Box(-1, 1, (2,)), gs.Box(-1, 1, (1,)))
    seen = np.ones(2, np.float32)
    first, second = (policy.act(seen, deterministic=True) for _ in range(2))
    by_hand, memory = policy(seen)
    assert first == by_hand and second == policy(seen, memory)[0] and first != second
    policy.reset()
    assert policy.act(seen, deterministic=True) == first
    with pytest.raises(ValueError, match=r"policy.reset\(\) for policy.act"):
        policy.act(np.ones((3, 2), np.float32))


def test_exploration_that_is_annealed_stands_where_training_left_it():
    algorithm = DQN(network=SMALL, epsilon=0.0, epsilon_steps=100)
    seen, kinds = np.zeros(2, np.float32), []
    for env_steps in (0, 1000):
        policy = untrained(algorithm, gs.Box(-1, 1, (2,)), gs.Discrete(5), env_steps=env_steps)
        kinds.append(len({int(policy.act(seen)) for _ in range(30)}))
    assert kinds[0] > 2 and kinds[1] == 1


# ------------------------------------------------------------------------------------------------- what does not fit


def changed(**leaves):
    return odd_observation() | leaves


WRONG = {
    "no dict": (np.zeros(3), r"observation has no leaf 'image'.*'parts'.*got float64 of shape \(3,\)"),
    "a missing leaf": ({k: v for k, v in odd_observation().items() if k != "parts"}, "no leaf 'parts'.*got a dict with"),
    "another shape": (
        changed(image=np.zeros((8, 8), np.uint8)),
        r"observation\['image'\]: expected uint8 of shape \(8, 8, 3\), or \(B, 8, 8, 3\) of a batch.*got "
        r"uint8 of shape \(8, 8\)",
    ),
    "floats for bytes": (
        changed(image=np.zeros((8, 8, 3), np.float32)),
        r"\['image'\]: expected uint8.*got float32 of shape \(8, 8, 3\). Convert it",
    ),
    "words": (changed(image="a picture"), r"\['image'\]: expected uint8.*got 'a picture'"),
    "nothing": (None, "no leaf 'image'.*got None"),
    "too few parts": (changed(parts=(3,)), r"observation\['parts'\] is a tuple of 2, got 1 parts"),
    "a part of another shape": (
        changed(parts=(3, np.zeros(3))),
        r"observation\['parts'\]\[1\]: expected float64 of shape \(2,\).*got float64 of shape \(3,\)",
    ),
    "a count that is none": (changed(parts=(3.5, np.zeros(2))), r"\['parts'\]\[0\]: expected int64 of shape \(\).*got float64"),
    "a count outside": (
        changed(parts=(6, np.zeros(2))),
        r"\['parts'\]\[0\]: expected.*Discrete\(4, start=2\), got 6, which is outside",
    ),
    "ragged rows": (changed(image=[[1, 2], [3]]), r"\['image'\]: expected uint8.*rows of different lengths"),
    "one and many": (changed(image=np.zeros((2, 8, 8, 3), np.uint8)), r"\['image'\]: a batch of 2, .*\['parts'\]\[0\]: one"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_observation_that_does_not_fit_is_refused_by_its_leaf(odd, case):
    observation, said = WRONG[case]
    with pytest.raises(ValueError, match=f"(?s){said}"):
        odd(observation)


def test_lists_and_numbers_are_observations_too():
    policy = untrained(A2C(network=SMALL), gs.Box(-1, 1, (2,)), gs.Discrete(2))
    assert policy([0, 1])[0] == policy(np.array([0.0, 1.0]))[0] and policy([[0, 1]] * 3)[0].shape == (3,)
