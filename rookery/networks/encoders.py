"""Encoders: any observation space becomes a vector of features.

| leaf of the space                 | is read as                                                                      |
|-----------------------------------|---------------------------------------------------------------------------------|
| Box, rank 0 or 1                  | numbers                                                                         |
| Box, rank 2 to 4, image-like      | sides >= 44: Nature; >= 24: compact; >= 8: a small convolution; less: numbers   |
| any other Box                     | numbers, flattened                                                              |
| Discrete, MultiDiscrete           | one-hot                                                                         |
| MultiBinary                       | numbers                                                                         |
| Dict, Tuple                       | their leaves, concatenated                                                      |

| together                          | become features by                                                              |
|-----------------------------------|---------------------------------------------------------------------------------|
| no image                          | the MLP (`hidden`)                                                              |
| one image alone                   | the dense layer after its convolutions                                          |
| images and others, a core follows | nothing: their concatenation is the core's input, as in IMPALA and R2D2         |
| images and others, no core        | one dense rectified layer, as wide as the widest image's features               |

Beside an image, a leaf of more than 8 numbers first goes through a dense layer of `hidden[-1]` units: so it neither outweighs
the image by its size nor is lost in it. One-hots, and few numbers such as the previous reward, stay as they are.

Image-like: bytes (or booleans), or three axes, or bounded below by 0 and above. The channel axis is the shorter of
the first and the last; (stack, H, W, C) becomes H x W with stack * C channels. Bytes, and images with a known upper
bound, are divided by that bound. A leaf `action_mask` is not encoded: see `split_mask`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks import products, units
from rookery.networks.config import NetworkConfig
from rookery.networks.convolution import convolution, image_convolution, max_pool
from rookery.spaces import UnsupportedSpace
from rookery.types import Array, PyTree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh, "relu": products.relu, "elu": nn.elu, "silu": nn.silu,
}
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {  # (size, stride, channels) of each layer
    "nature": ((8, 4, 32), (4, 2, 64), (3, 1, 64)),  # Mnih et al., 2015
    "shallow": ((8, 4, 16), (4, 2, 32)),  # Mnih et al., 2013 and 2016 (A3C); the shallow network of IMPALA
    "compact": ((4, 2, 32), (4, 2, 64), (3, 1, 64)),  # Nature's at half the size: 32 x 32 becomes 4 x 4, as 64 x 64 there
    "small": ((3, 1, 16),),  # MinAtar (Young and Tian, 2019)
}
FEATURES = {"nature": 512, "compact": 512, "shallow": 256, "impala": 256, "small": 128}  # units after the convolutions
# the least sides that "auto" gives to each: where things are must be left to see, and Nature's convolutions leave one pixel up
# to 43; a window of 3 x 3 needs some room. On 32 x 32 an update of SAC with compact costs half of what it does with small
AUTO_SIDES = {"nature": 44, "compact": 24, "small": 8}
FEW = 8  # numbers that stand beside an image as they are
Path = tuple[str | int, ...]
Kind = Literal["numbers", "one_hot", "nature", "shallow", "compact", "small", "impala"]


class Leaf(NamedTuple):
    """How one array of the observation is read. Hashable: it is part of a module."""

    path: Path
    kind: Kind
    scale: float = 1.0  # of numbers and images
    counts: tuple[int, ...] = ()  # of one-hots: categories of each component
    starts: tuple[int, ...] = ()
    layout: Literal["", "HW", "HWC", "CHW", "NHWC"] = ""  # of images


# ------------------------------------------------------------------------------------------------------- spaces


def leaves(space: gymnasium.Space, encoder: str = "auto") -> tuple[Leaf, ...]:
    """List the leaves that an encoder reads, masks left out. UnsupportedSpace names a leaf that cannot be read."""
    found = tuple(_leaf(path, leaf, encoder) for path, leaf in _walk(space, ()) if not _is_mask(path))
    if not found:
        raise UnsupportedSpace(f"The observation space {space} has nothing to encode: add an array besides the mask.")
    if encoder in FEATURES and all(leaf.kind != encoder for leaf in found):
        raise ValueError(f"network.encoder={encoder!r} reads images, and the observation {space} has none; use 'auto'.")
    return found


def zeros(space: gymnasium.Space, B: int = 1) -> PyTree:
    """Make observations of zeros, [B, ...]: what modules are initialised with."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: zeros(part, B) for name, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(zeros(part, B) for part in space)
    return jnp.zeros((B, *(space.shape or ())), jax.dtypes.canonicalize_dtype(space.dtype))


def split_mask(observation: PyTree) -> Array | None:
    """Return the mask [B, A] of legal actions, True where legal, or None: the key `action_mask` of an observation [B, ...].

    It is looked for at the top and below the key `observation` (where previous action and reward stand beside it).
    Several masks, one for each component of a MultiDiscrete action, are concatenated, the rows of a matrix as well.
    """
    for _ in range(2):
        if not isinstance(observation, dict):
            return None
        if "action_mask" in observation:
            parts = jax.tree.leaves(observation["action_mask"])
            return jnp.concatenate([jnp.asarray(part).astype(bool).reshape(part.shape[0], -1) for part in parts], -1)
        observation = observation.get("observation")
    return None


def mask_size(space: gymnasium.Space) -> int | None:
    """Count the entries of the action mask in this space; None where there is none."""
    sizes = [math.prod(leaf.shape or ()) for path, leaf in _walk(space, ()) if _is_mask(path)]
    return sum(sizes) if sizes else None


def _walk(space: gymnasium.Space, path: Path) -> Iterator[tuple[Path, gymnasium.Space]]:
    if isinstance(space, gymnasium.spaces.Dict):
        for name, part in space.items():
            yield from _walk(part, (*path, name))
    elif isinstance(space, gymnasium.spaces.Tuple):
        for index, part in enumerate(space):
            yield from _walk(part, (*path, index))
    else:
        yield path, space


def _is_mask(path: Path) -> bool:
    return path[:1] == ("action_mask",) or path[:2] == ("observation", "action_mask")


def _leaf(path: Path, space: gymnasium.Space, encoder: str) -> Leaf:
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return Leaf(path, "one_hot", counts=(int(space.n),), starts=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = (tuple(int(n) for n in np.ravel(part)) for part in (space.nvec, space.start))
        return Leaf(path, "one_hot", counts=counts, starts=starts)
    if isinstance(space, spaces.MultiBinary):
        return Leaf(path, "numbers")
    if isinstance(space, spaces.Box):
        return _box(path, space, encoder)
    name = "observation" + "".join(f"[{key!r}]" for key in path)
    raise UnsupportedSpace(
        f"{name} is a {type(space).__name__} space ({space}), which no encoder reads. Wrap the environment so that it "
        f"becomes a Box, Discrete, MultiDiscrete or MultiBinary, drop it, or give a torso of your own."
    )


def _box(path: Path, space: gymnasium.spaces.Box, encoder: str) -> Leaf:
    high = float(np.max(space.high)) if space.high.size else math.inf
    scale = 1.0 / high if 0.0 < high < math.inf else 1.0
    layout, side = _layout(space.shape)
    positive = bool(np.min(space.low) >= 0)
    image_like = space.dtype in (np.uint8, np.bool_) or len(space.shape) == 3 or (positive and high < math.inf)
    if encoder == "mlp" or not layout or not image_like or (encoder == "auto" and side < AUTO_SIDES["small"]):
        return Leaf(path, "numbers", scale=scale if space.dtype == np.uint8 else 1.0)
    kind: Any = encoder if encoder != "auto" else next(kind for kind, least in AUTO_SIDES.items() if side >= least)
    if side < (least := least_side(kind)):
        raise ValueError(f"network.encoder={kind!r} needs sides >= {least}; observation {path} is {space.shape}.")
    return Leaf(path, kind, scale=scale if positive else 1.0, layout=layout)


def least_side(kind: str) -> int:
    """Compute the side of the smallest image that leaves one pixel after the convolutions: 36 for Nature's."""
    side = 1
    for size, stride, _ in reversed(CONVOLUTIONS.get(kind, ())):
        side = (side - 1) * stride + size
    return side


def _layout(shape: tuple[int, ...]) -> tuple[Any, int]:
    """Return the order of the axes, and the shorter side of the image."""
    if len(shape) == 2:
        return "HW", min(shape)
    if len(shape) == 3:
        return ("CHW", min(shape[1:])) if shape[0] < shape[2] else ("HWC", min(shape[:2]))
    if len(shape) == 4 and shape[-1] <= 4:
        return "NHWC", min(shape[1:3])
    return "", 0


# ------------------------------------------------------------------------------------------------------ modules


def dense(size: int, *, gain: float = math.sqrt(2.0), name: str | None = None) -> nn.Dense:
    """Make a layer whose kernel is declared with its gain, for `network.orthogonal` to give it a direction; zero bias."""
    return nn.Dense(size, kernel_init=nn.initializers.constant(gain), name=name, dot_general=products.dot_general)


class Encoder(nn.Module):
    """observation [B, ...] -> features [B, F]; the table above says what they go through."""

    parts: tuple[Leaf, ...]
    config: NetworkConfig
    layer_norm: bool = False  # of the MLP: Ba et al. 2016, before the activation
    norm_images: bool = False  # the dense layer of an image is normalised and bounded by tanh (Yarats et al. 2019, SAC-AE)

    @nn.compact
    def __call__(self, observation: PyTree) -> Array:
        features = [self._read(index, leaf, observation) for index, leaf in enumerate(self.parts)]
        images = [FEATURES[leaf.kind] for leaf in self.parts if leaf.layout]
        if images and self.config.hidden:
            features = [self._condensed(index, *both) for index, both in enumerate(zip(self.parts, features))]
        x = features[0] if len(features) == 1 else jnp.concatenate(features, -1)
        if not images:
            for index, size in enumerate(self.config.hidden):
                x = dense(size, name=f"dense_{index}")(x)
                x = self._active(nn.LayerNorm(name=f"norm_{index}")(x) if self.layer_norm else x)
        elif len(features) > 1 and self.config.core == "none":
            x = _relu(dense(max(images), name="mixed")(x))
        return x

    def _condensed(self, index: int, leaf: Leaf, x: Array) -> Array:
        """Condense what stands beside an image: many numbers through a layer, anything else stays as it is."""
        if leaf.kind != "numbers" or x.shape[-1] <= FEW:
            return x
        return self._active(dense(self.config.hidden[-1], name=f"numbers_{index}")(x))

    def _active(self, x: Array) -> Array:
        return units.told(ACTIVATIONS[self.config.activation](x))

    def _read(self, index: int, leaf: Leaf, observation: PyTree) -> Array:
        x = observation
        for key in leaf.path:
            x = x[key]
        B = x.shape[0]
        if leaf.kind == "one_hot":
            x = x.reshape(B, -1)
            columns = [jax.nn.one_hot(x[:, i] - start, n) for i, (n, start) in enumerate(zip(leaf.counts, leaf.starts))]
            return jnp.concatenate(columns, -1)
        if leaf.kind == "numbers":
            x = x.reshape(B, -1).astype(jnp.float32)
            return x if leaf.scale == 1.0 else x * leaf.scale
        if leaf.layout == "HW":
            x = x[..., None]
        if leaf.layout == "NHWC":
            x = x.transpose(0, 2, 3, 1, 4).reshape(B, *x.shape[2:4], -1)
        common: dict[str, Any] = {"scale": leaf.scale, "channels_first": leaf.layout == "CHW", "name": f"image_{index}"}
        common["norm"] = self.norm_images
        return Impala(**common)(x) if leaf.kind == "impala" else Convolutions(leaf.kind, **common)(x)


class Kernel(nn.Module):
    """The parameters of one convolution: kernel [size, size, in, out] and bias, given as [1, 1, 1, out]."""

    size: int
    out: int

    @nn.compact
    def __call__(self, channels: int) -> tuple[Array, Array]:
        shape = (self.size, self.size, channels, self.out)
        kernel = self.param("kernel", nn.initializers.constant(math.sqrt(2.0)), shape)
        return kernel, self.param("bias", nn.initializers.zeros, (self.out,)).reshape(1, 1, 1, -1)


class Convolutions(nn.Module):
    """image [B, ...] -> [B, F]: the rectified layers of `CONVOLUTIONS[kind]`, then a dense one of `FEATURES[kind]`."""

    kind: str
    scale: float
    channels_first: bool
    norm: bool = False

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = image
        for index, (size, stride, out) in enumerate(CONVOLUTIONS[self.kind]):
            kernel, bias = Kernel(size, out, name=f"conv_{index}")(x.shape[1 if not index and self.channels_first else -1])
            if index == 0:
                x = image_convolution(x, kernel, stride=stride, scale=self.scale, channels_first=self.channels_first)
            else:
                x = convolution(x, kernel, stride=stride)
            x = _relu(x + bias)
        return _features(dense(FEATURES[self.kind], name="dense")(x.reshape(x.shape[0], -1)), self.norm)


class Impala(nn.Module):
    """image [B, ...] -> [B, 256]: three sections of a convolution, a pool and two residual blocks (Espeholt 2018)."""

    scale: float
    channels_first: bool
    norm: bool = False

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = image
        for section, out in enumerate((16, 32, 32)):
            first = section == 0
            channels = x.shape[1 if first and self.channels_first else -1]
            kernel, bias = Kernel(3, out, name=f"section_{section}_conv")(channels)
            if first:
                x = image_convolution(
                    x, kernel, stride=1, scale=self.scale, channels_first=self.channels_first, padding="SAME"
                )
            else:
                x = convolution(x, kernel, padding="SAME")
            x = max_pool(x + bias)
            for block in range(2):
                x = x + self._residual(x, f"section_{section}_block_{block}")
        return _features(dense(FEATURES["impala"], name="dense")(_relu(x).reshape(x.shape[0], -1)), self.norm)

    def _residual(self, x: Array, name: str) -> Array:
        for index in range(2):
            kernel, bias = Kernel(3, x.shape[-1], name=f"{name}_conv_{index}")(x.shape[-1])
            x = convolution(_relu(x), kernel, padding="SAME") + bias
        return x


def _features(x: Array, norm: bool) -> Array:
    return units.told(nn.tanh(nn.LayerNorm(name="norm")(x))) if norm else _relu(x)


def _relu(x: Array) -> Array:
    return units.told(products.relu(x))
