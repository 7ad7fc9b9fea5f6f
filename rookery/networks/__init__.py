"""Networks: encoders for any observation space, cores with memory, heads. See `actor_critic`."""

from typing import TYPE_CHECKING, Any

from rookery.networks.config import Network, NetworkConfig, Output, ViewsConfig

if TYPE_CHECKING:
    from rookery.networks.network import actor_critic

__all__ = ["Network", "NetworkConfig", "Output", "ViewsConfig", "actor_critic"]


def __getattr__(name: str) -> Any:
    # Late, so that a config can be imported and printed (`--help`) without the second that jax and flax take.
    if name == "actor_critic":
        from rookery.networks.network import actor_critic

        return actor_critic
    raise AttributeError(f"module 'rookery.networks' has no attribute {name!r}")
