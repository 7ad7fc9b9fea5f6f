"""The losses once more, slowly: double loops over rows, float64, nothing shared with the package.

Each returns the loss, its terms, and its derivatives by log π(a|x), V(x) and H(π(.|x)) of every row, worked out by hand:
what must be held constant has no derivative. A gradient by the weights follows by the chain rule.
"""

from typing import NamedTuple

import numpy as np


class Stated(NamedTuple):
    terms: dict  # name -> mean over the valid rows
    by_logp: np.ndarray  # [T, B]
    by_value: np.ndarray  # [T, B]
    by_entropy: np.ndarray  # [T, B]
    facts: dict | None = None  # shares of the rows that a clip concerns

    @property
    def loss(self):
        return sum(self.terms.values())


class Seen(NamedTuple):
    """What a network says of a rollout."""

    logp: np.ndarray  # [T, B]
    entropy: np.ndarray  # [T, B]
    value: np.ndarray  # [T, B]
    value_next: np.ndarray  # [T, B]


def read_categorical(logits, values, action):
    """logits [T, B, A], values [T + 1, B], action [T, B] -> Seen."""
    T, B, A = logits.shape
    logp, entropy = np.zeros((T, B)), np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            p = np.exp(logits[t, b].astype(np.float64) - logits[t, b].max())
            p = p / p.sum()
            logp[t, b] = np.log(p[action[t, b]])
            entropy[t, b] = -sum(p[a] * np.log(p[a]) for a in range(A) if p[a] > 0)
    values = values.astype(np.float64)
    return Seen(logp, entropy, values[:-1], values[1:])


def advantages(seen, rollout, lam, reward=None):
    """GAE as a double sum: nothing is added beyond an episode's last row."""
    reward = rollout.reward if reward is None else reward
    T, B = reward.shape
    result = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                if rollout.valid[k, b] == 0:
                    break
                delta = reward[k, b] + rollout.discount[k, b] * seen.value_next[k, b] - seen.value[k, b]
                result[t, b] += weight * delta
                weight *= rollout.discount[k, b] * lam
    return result


def vtrace(seen, rollout, log_rho, *, lam, rho_bar=1.0, c_bar=1.0, reward=None):
    """V-trace's targets as a double sum, and the advantages, not yet weighted by the ratio."""
    reward = rollout.reward if reward is None else reward
    T, B = reward.shape
    ratio = np.exp(log_rho)
    target, advantage = np.array(seen.value), np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            weight = 1.0
            for t in range(s, T):
                if rollout.valid[t, b] == 0:
                    break
                delta = reward[t, b] + rollout.discount[t, b] * seen.value_next[t, b] - seen.value[t, b]
                target[s, b] += weight * min(rho_bar, ratio[t, b]) * delta
                weight *= rollout.discount[t, b] * lam * min(c_bar, ratio[t, b])
        for s in range(T):
            if rollout.valid[s, b] == 0:
                continue
            later = seen.value_next[s, b]
            if s + 1 < T and rollout.valid[s + 1, b]:
                later = lam * target[s + 1, b] + (1 - lam) * later
            advantage[s, b] = reward[s, b] + rollout.discount[s, b] * later - seen.value[s, b]
    return target, advantage


def a2c(seen, rollout, config, reward=None):
    advantage = advantages(seen, rollout, config.gae_lambda, reward)
    return _actor_critic(seen, rollout, advantage, advantage + seen.value, config.value_cost, config.entropy_cost)


def pg(seen, rollout, config):
    to_go = advantages(seen, rollout, 1.0) + seen.value
    return _actor_critic(seen, rollout, _standardised(to_go, rollout.valid), to_go, 1.0, config.entropy_cost)


def impala(seen, rollout, config, reward=None):
    log_rho = seen.logp - rollout.extras["behaviour_logp"]
    target, advantage = vtrace(
        seen, rollout, log_rho, lam=config.trace_lambda, rho_bar=config.rho_bar, c_bar=config.c_bar, reward=reward
    )
    weighted = np.minimum(1.0, np.exp(log_rho)) * advantage
    return _actor_critic(seen, rollout, weighted, target, config.value_cost, config.entropy_cost)


def ppo(seen, before, rollout, config):
    """before: what the network said when the data was fresh; targets and advantages are made of that."""
    advantage = advantages(before, rollout, config.gae_lambda)
    target = before.value + advantage
    ratio = np.exp(seen.logp - rollout.extras["behaviour_logp"])
    low, high = 1 - config.clip, 1 + config.clip
    return _clipped(
        seen, rollout, ratio, _standardised(advantage, rollout.valid), target, config,
        clip=(low, high), old_value=before.value, value_clip=config.value_clip,
    )  # fmt: skip


def appo(seen, before, rollout, config):
    """Sample Factory's: the ratio is in the clipped objective, and nowhere else. before: what the network said of the rollout
    before the first pass; V-trace's targets and advantages are made of that."""
    behaviour_logp = rollout.extras["behaviour_logp"]
    target, advantage = vtrace(before, rollout, before.logp - behaviour_logp, lam=config.trace_lambda)
    return _clipped(
        seen, rollout, np.exp(seen.logp - behaviour_logp), _standardised(advantage, rollout.valid), target, config,
        clip=(1 / (1 + config.clip), 1 + config.clip),
        old_value=rollout.extras["value"], value_clip=config.value_clip,
    )  # fmt: skip


def appo_target(seen, slow, rollout, config):
    """slow: what the target network says of the rollout."""
    log_rho = slow.logp - rollout.extras["behaviour_logp"]
    target, advantage = vtrace(seen, rollout, log_rho, lam=config.trace_lambda)
    weighted = np.minimum(1.0, np.exp(log_rho)) * advantage
    ratio = np.exp(seen.logp - slow.logp)
    clip, weighted = (1 - config.clip, 1 + config.clip), _standardised(weighted, rollout.valid)
    return _clipped(seen, rollout, ratio, weighted, target, config, clip=clip, old_value=None, value_clip=None)


def _actor_critic(seen, rollout, weight, target, value_cost, entropy_cost):
    T, B = weight.shape
    count = rollout.valid.sum()
    terms = dict.fromkeys(("policy", "value", "entropy"), 0.0)
    by_logp, by_value, by_entropy = np.zeros((T, B)), np.zeros((T, B)), np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            if rollout.valid[t, b] == 0:
                continue
            error = seen.value[t, b] - target[t, b]
            terms["policy"] -= weight[t, b] * seen.logp[t, b] / count
            terms["value"] += value_cost * 0.5 * error**2 / count
            terms["entropy"] -= entropy_cost * seen.entropy[t, b] / count
            by_logp[t, b] = -weight[t, b] / count
            by_value[t, b] = value_cost * error / count
            by_entropy[t, b] = -entropy_cost / count
    return Stated(terms, by_logp, by_value, by_entropy)


def _clipped(seen, rollout, ratio, advantage, target, config, *, clip, old_value, value_clip):
    T, B = ratio.shape
    count = rollout.valid.sum()
    terms = dict.fromkeys(("policy", "value", "entropy"), 0.0)
    by_logp, by_value, by_entropy = np.zeros((T, B)), np.zeros((T, B)), np.zeros((T, B))
    flat = {"policy": 0, "value": 0, "outside": 0}  # rows whose gradient is cut; rows whose ratio is outside
    for t in range(T):
        for b in range(B):
            if rollout.valid[t, b] == 0:
                continue
            r, A, v = ratio[t, b], advantage[t, b], seen.value[t, b]
            inside = clip[0] <= r <= clip[1]
            free, held = r * A, min(max(r, clip[0]), clip[1]) * A
            terms["policy"] -= min(free, held) / count
            policy_moves = free < held or inside
            by_logp[t, b] = -(r * A if policy_moves else 0.0) / count  # d r / d log π = r
            error, value_moves = (v - target[t, b]) ** 2, True
            if value_clip is not None:
                near = old_value[t, b] + min(max(v - old_value[t, b], -value_clip), value_clip)
                held_error = (near - target[t, b]) ** 2
                value_moves = error > held_error or abs(v - old_value[t, b]) <= value_clip
                error = max(error, held_error)
            terms["value"] += config.value_cost * 0.5 * error / count
            by_value[t, b] = config.value_cost * (v - target[t, b]) / count if value_moves else 0.0
            terms["entropy"] -= config.entropy_cost * seen.entropy[t, b] / count
            by_entropy[t, b] = -config.entropy_cost / count
            flat["policy"] += not policy_moves
            flat["value"] += not value_moves
            flat["outside"] += not inside
    return Stated(terms, by_logp, by_value, by_entropy, {name: number / count for name, number in flat.items()})


def _standardised(x, valid):
    kept = [x[index] for index in np.ndindex(x.shape) if valid[index]]
    return (x - np.mean(kept)) / (np.std(kept) + 1e-8)
