"""What options mean that mean the same in every algorithm and topology: the help shows it where a field says nothing itself."""

from __future__ import annotations

import ast
import inspect
import textwrap

MEANINGS = {
    "adam_epsilon": "Adam's epsilon: added to the root of the second moment.",
    "batch_size": "Items (transitions or sequences) per gradient step.",
    "c_bar": "V-trace: clip of the ratios that traces are cut by.",
    "clip": "Clip of probability ratios: 1 ± this.",
    "collectors": "Collectors that share the environments.",
    "discount": "Gamma: the worth of a later reward.",
    "double": "Double Q-learning: the newest network chooses the action that the target network values.",
    "dueling": "Dueling heads: the value of a state and the advantages of its actions.",
    "entropy_cost": "Weight of the entropy bonus.",
    "epochs": "Passes over each batch.",
    "gae_lambda": "Lambda of generalised advantage estimation: 0: one step, 1: the whole rollout.",
    "learning_rate": "Step size of the optimizer.",
    "max_gradient_norm": "Gradients with a larger global norm are scaled down to it.",
    "n_step": "Rewards that are added up before a bootstrap.",
    "noisy": "Explore by noise in the weights of the network (NoisyNet), instead of by epsilon.",
    "rho_bar": "V-trace: clip of the ratios that errors are weighted by.",
    "rollout_length": "Steps per environment in a rollout.",
    "rollouts_per_batch": "Rollouts that are learned from at once.",
    "target_period": "Updates between copies to the target network.",
    "trace_lambda": "Lambda of V-trace: 1 as in the paper, less for shorter traces.",
    "value_cost": "Weight of the value's loss.",
    "weight_decay": "Share of the parameters that is subtracted with every update, times the learning rate.",
}


def meaning(config: type, name: str) -> str | None:
    """Return what an option means by this page; None where its field has a docstring of its own, or nobody says."""
    return None if name in documented(config) else MEANINGS.get(name)


def documented(config: type) -> set[str]:
    """List the fields of a dataclass, inherited ones too, that are followed by a docstring."""
    return set(docstrings(config))


def docstrings(config: type) -> dict[str, str]:
    """Read the docstrings under the fields of a dataclass, inherited ones too."""
    found: dict[str, str] = {}
    for parent in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and (said := _text(after)) is not None:
                found[field.target.id] = said
    return found


def _text(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return inspect.cleandoc(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
