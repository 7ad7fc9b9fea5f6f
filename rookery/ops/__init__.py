"""Pure mathematics on arrays: returns, V-trace, masked reductions, action distributions, normalisers, gradients.

Time is axis 0 and trailing axes broadcast; results are unreduced [T, B], and the algorithm reduces once, by
`masked_mean`. Running normalisers and random keys are used as modules: `ops.moments`, `ops.random`, and so are
columns that several processes share: `ops.spread`.
"""

from rookery.ops import moments, random, spread
from rookery.ops.cem import cross_entropy_method
from rookery.ops.distributions import (
    Distribution,
    bernoulli,
    categorical,
    for_space,
    gaussian,
    mask_logits,
    multi_categorical,
    product,
    squashed_gaussian,
)
from rookery.ops.gradients import Norms, accumulate, clip_by_global_norm
from rookery.ops.masked import all_alike, masked_mean, masked_moments, masked_normalise, row_weights
from rookery.ops.moments import Moments
from rookery.ops.q_learning import (
    categorical_projection,
    epsilon_greedy,
    huber,
    of_action,
    squeeze_value,
    support,
    unsqueeze_value,
    wide_support,
)
from rookery.ops.ranks import centred_ranks
from rookery.ops.returns import gae, n_step_return
from rookery.ops.vtrace import VTraceReturns, vtrace

__all__ = [
    "Distribution",
    "Moments",
    "Norms",
    "VTraceReturns",
    "accumulate",
    "all_alike",
    "bernoulli",
    "categorical",
    "categorical_projection",
    "centred_ranks",
    "clip_by_global_norm",
    "cross_entropy_method",
    "epsilon_greedy",
    "for_space",
    "gae",
    "gaussian",
    "huber",
    "mask_logits",
    "masked_mean",
    "masked_moments",
    "masked_normalise",
    "moments",
    "multi_categorical",
    "n_step_return",
    "of_action",
    "product",
    "random",
    "row_weights",
    "spread",
    "squashed_gaussian",
    "squeeze_value",
    "support",
    "unsqueeze_value",
    "vtrace",
    "wide_support",
]
