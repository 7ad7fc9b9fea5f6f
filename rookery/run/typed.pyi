"""Options as types. Made of the options themselves: `python tests/run/test_option_files.py` writes it.

A system that is named in the call takes its own options alone. One that is a variable takes those that every system has; with
`topology=`, or with an algorithm of your own, nothing is known of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, overload

from rookery.data.config import ReplayBuffer, ReplayConfig
from rookery.networks.config import NetworkConfig, ViewsConfig
from rookery.run.trainer import Result
from rookery.run.trainer import Trainer as _Trainer
from rookery.runtime.interface import Resources

class _Buildable(Protocol):
    @property
    def build(self) -> Callable[..., Any]: ...

class ResourcesFields(TypedDict, total=False):
    cpus: float
    gpus: float
    variables: Sequence[str]

class NetworkConfigFields(TypedDict, total=False):
    encoder: Literal["auto", "mlp", "nature", "shallow", "compact", "impala", "small"]
    hidden: Sequence[int]
    activation: Literal["tanh", "relu", "elu", "silu"]
    core: Literal["none", "lstm", "gru"]
    core_size: int
    heads: Literal["auto", "shared", "separate"]
    initial_log_std: float

class ViewsConfigFields(TypedDict, total=False):
    kind: Literal["whole", "crop", "shift"]
    window: float

class ReplayConfigFields(TypedDict, total=False):
    capacity: int
    min_size: int
    error_buffer: float | None
    selector: Literal["uniform", "prioritized"]
    exponent: float
    beta: float
    remover: Literal["fifo", "lifo", "min_heap", "prioritized"]
    max_times_sampled: int
    stack: int | None
    shards: int
    save_megabytes: int
    save_files: bool
    samples_per_insert: float

class ReplayBufferFields(TypedDict, total=False):
    capacity: int
    min_size: int
    error_buffer: float | None
    selector: Literal["uniform", "prioritized"]
    exponent: float
    beta: float
    remover: Literal["fifo", "lifo", "min_heap", "prioritized"]
    max_times_sampled: int
    stack: int | None
    shards: int
    save_megabytes: int
    save_files: bool

class RunOptionsFields(TypedDict, total=False):
    total_steps: int
    total_updates: int | None
    seconds: float | None
    stop_return: float | None
    stop_eval_return: float | None
    seed: int
    run: str | None
    runs: str
    runtime: Literal["local", "ray"]
    address: str | None
    devices: int
    learners: int | None
    collector: ResourcesFields | Resources
    learner: ResourcesFields | Resources
    shard: ResourcesFields | Resources
    eval_episodes: int
    eval_every: int | None
    checkpoint_every: int | None
    keep: int
    milestones: int
    env_processes: int | None
    env_step_seconds: float
    env_restarts: int
    env_max_mb: float | None
    on_nan: Literal["stop", "drop-episode", "clip"]
    strict_security: bool
    video_every: int | None
    tensorboard: bool
    wandb: bool
    wandb_project: str
    log_every: int | None

class PPOFields(TypedDict, total=False):
    rollout_length: int
    discount: float
    gae_lambda: float
    epochs: int
    minibatches: int | None
    clip: float
    value_clip: float | None
    learning_rate: float
    anneal: bool
    entropy_cost: float
    value_cost: float
    max_gradient_norm: float
    reward_clip: Literal["none", "unit", "soft-asymmetric"]
    normalise_observations: bool | None
    normalise_rewards: bool | None
    squash: bool
    network: NetworkConfigFields | NetworkConfig
    loss: Any

class SyncFields(TypedDict, total=False):
    num_envs: int
    collectors: int
    groups: int

class A2CFields(TypedDict, total=False):
    rollout_length: int | None
    discount: float
    gae_lambda: float
    learning_rate: float
    anneal: bool
    entropy_cost: float
    value_cost: float
    value_steps: int | None
    max_gradient_norm: float
    rmsprop_epsilon: float
    reward_clip: Literal["none", "unit", "soft-asymmetric"]
    normalise_observations: bool | None
    normalise_rewards: bool | None
    network: NetworkConfigFields | NetworkConfig
    loss: Any

class PGFields(TypedDict, total=False):
    rollout_length: int
    discount: float
    learning_rate: float
    anneal: bool
    entropy_cost: float
    max_gradient_norm: float
    reward_clip: Literal["none", "unit", "soft-asymmetric"]
    normalise_observations: bool | None
    normalise_rewards: bool | None
    network: NetworkConfigFields | NetworkConfig
    loss: Any

class VTraceFields(TypedDict, total=False):
    rollout_length: int | None
    discount: float
    rho_bar: float
    c_bar: float
    trace_lambda: float
    learning_rate: float
    anneal: bool
    entropy_cost: float
    value_cost: float
    value_steps: int | None
    reward_clip: Literal["none", "unit", "soft-asymmetric"]
    normalise_observations: bool | None
    normalise_rewards: bool | None
    max_gradient_norm: float
    rmsprop_epsilon: float
    previous: bool
    network: NetworkConfigFields | NetworkConfig
    loss: Any

class ActorLearnerFields(TypedDict, total=False):
    num_envs: int
    collectors: int | str
    groups: int
    rollouts_per_batch: int
    in_flight: int
    prefetch: int
    inference: Literal["local", "central"]
    inference_batch: int
    inference_wait_ms: float | None
    inference_lag: int

class APPOFields(TypedDict, total=False):
    variant: Literal["sample-factory", "target-policy"]
    rollout_length: int
    discount: float
    trace_lambda: float
    epochs: int
    minibatches: int | None
    clip: float
    value_clip: float
    target_period: int
    learning_rate: float
    anneal: bool
    entropy_cost: float
    value_cost: float
    max_gradient_norm: float
    reward_clip: Literal["none", "unit", "soft-asymmetric"]
    normalise_observations: bool | None
    normalise_rewards: bool | None
    network: NetworkConfigFields | NetworkConfig

class DQNFields(TypedDict, total=False):
    rollout_length: int
    fresh: bool
    discount: float
    n_step: int
    double: bool
    dueling: bool
    noisy: bool
    num_atoms: int
    value_range: Sequence[float] | None
    batch_size: int
    gradient_steps: int
    target_period: int
    learning_rate: float
    anneal: bool
    adam_epsilon: float
    max_gradient_norm: float
    error_clip: float
    exploration: Literal["anneal", "ladder", "anneal-ladder", "mixed"]
    epsilon: float
    epsilon_steps: int | None
    reward_clip: float | None
    normalise_rewards: bool | None
    normalise_observations: bool | None
    contrastive_every: int
    contrastive_rate: float
    encoder_polyak: float
    views: ViewsConfigFields | ViewsConfig
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayConfigFields | ReplayConfig

class R2D2Fields(TypedDict, total=False):
    rollout_length: int
    burn_in: int
    sequence_length: int
    discount: float
    n_step: int
    dueling: bool
    batch_size: int
    target_period: int
    learning_rate: float
    adam_epsilon: float
    max_gradient_norm: float
    epsilon: float
    eta: float
    demo_ratio: float
    demonstrations: str | None
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayConfigFields | ReplayConfig

class AnakinFields(TypedDict, total=False):
    num_envs: int
    num_seeds: int
    updates_per_call: int | None

class AsyncGradientsFields(TypedDict, total=False):
    num_envs: int
    workers: int
    groups: int
    max_staleness: int | None

class GossipFields(TypedDict, total=False):
    num_envs: int
    peers: int
    groups: int
    max_staleness: int

class ParameterServerFields(TypedDict, total=False):
    num_envs: int
    workers: int
    shards: int
    groups: int
    pull_every: int
    max_staleness: int | None
    outlier_deviations: float | None

class DDPGFields(TypedDict, total=False):
    rollout_length: int
    discount: float
    n_step: int
    batch_size: int
    gradient_steps: int
    update_ratio: float
    learning_rate: float
    anneal: bool
    adam_epsilon: float
    polyak: float
    noise: float
    exploration: Literal["same", "ladder"]
    layer_norm: bool
    random_steps: int | None
    normalise_observations: bool | None
    reward_clip: float | None
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayBufferFields | ReplayBuffer

class TD3Fields(TypedDict, total=False):
    rollout_length: int
    discount: float
    n_step: int
    batch_size: int
    gradient_steps: int
    update_ratio: float
    learning_rate: float
    anneal: bool
    adam_epsilon: float
    polyak: float
    policy_delay: int
    noise: float
    target_noise: float
    target_noise_clip: float
    layer_norm: bool
    random_steps: int | None
    normalise_observations: bool | None
    reward_clip: float | None
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayBufferFields | ReplayBuffer

class SACFields(TypedDict, total=False):
    rollout_length: int
    discount: float
    n_step: int
    batch_size: int
    gradient_steps: int
    update_ratio: float
    learning_rate: float
    temperature_rate: float
    anneal: bool
    adam_epsilon: float
    polyak: float
    encoder_polyak: float
    policy_delay: int
    critics: int
    target_critics: int
    layer_norm: bool
    initial_temperature: float
    target_entropy: float | None
    random_steps: int | None
    contrastive_every: int
    contrastive_rate: float
    views: ViewsConfigFields | ViewsConfig
    normalise_observations: bool | None
    reward_clip: float | None
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayBufferFields | ReplayBuffer

class TwoLearnersFields(TypedDict, total=False):
    num_envs: int
    collectors: int
    groups: int
    in_flight: int
    prefetch: int
    auxiliary_workers: int
    auxiliary_ratio: float | None
    max_staleness: int | None

class QTOptFields(TypedDict, total=False):
    rollout_length: int
    discount: float
    n_step: int
    batch_size: int
    gradient_steps: int
    update_ratio: float
    learning_rate: float
    anneal: bool
    adam_epsilon: float
    samples: int
    elites: int
    iterations: int
    polyak: float
    target_lag: int | None
    value_range: Sequence[float] | None
    noise: float
    epsilon: float
    layer_norm: bool
    random_steps: int | None
    demo_ratio: float
    demonstrations: str | None
    normalise_observations: bool | None
    reward_clip: float | None
    network: NetworkConfigFields | NetworkConfig
    replay: ReplayBufferFields | ReplayBuffer

class BellmanUpdatersFields(TypedDict, total=False):
    num_envs: int
    collectors: int | str
    groups: int
    in_flight: int
    updaters: int | str
    uses: int
    prefetch: int

class ESFields(TypedDict, total=False):
    max_episode_steps: int
    sigma: float
    learning_rate: float
    weight_decay: float
    normalise_observations: bool
    network: NetworkConfigFields | NetworkConfig

class EvolutionFields(TypedDict, total=False):
    population: int
    num_envs: int
    workers: int
    backups: bool

class ARSFields(TypedDict, total=False):
    variant: Literal["v1", "v1-t", "v2", "v2-t"]
    best: int
    max_episode_steps: int
    sigma: float
    learning_rate: float
    survival_bonus: float
    network: NetworkConfigFields | NetworkConfig

class SharedFields(RunOptionsFields, total=False):
    learning_rate: float
    network: NetworkConfigFields | NetworkConfig
    num_envs: int

class PPOSyncFields(RunOptionsFields, PPOFields, SyncFields, total=False): ...

class A2CSyncFields(RunOptionsFields, A2CFields, SyncFields, total=False): ...

class PGSyncFields(RunOptionsFields, PGFields, SyncFields, total=False): ...

class VTraceActorLearnerFields(RunOptionsFields, VTraceFields, ActorLearnerFields, total=False): ...

class APPOActorLearnerFields(RunOptionsFields, APPOFields, ActorLearnerFields, total=False): ...

class DQNSyncFields(RunOptionsFields, DQNFields, SyncFields, total=False): ...

class DQNActorLearnerFields(RunOptionsFields, DQNFields, ActorLearnerFields, total=False): ...

class R2D2ActorLearnerFields(RunOptionsFields, R2D2Fields, ActorLearnerFields, total=False): ...

class PPOAnakinFields(RunOptionsFields, PPOFields, AnakinFields, total=False): ...

class DQNAnakinFields(RunOptionsFields, DQNFields, AnakinFields, total=False): ...

class A2CAsyncGradientsFields(RunOptionsFields, A2CFields, AsyncGradientsFields, total=False): ...

class DQNAsyncGradientsFields(RunOptionsFields, DQNFields, AsyncGradientsFields, total=False): ...

class A2CGossipFields(RunOptionsFields, A2CFields, GossipFields, total=False): ...

class DQNParameterServerFields(RunOptionsFields, DQNFields, ParameterServerFields, total=False): ...

class DDPGSyncFields(RunOptionsFields, DDPGFields, SyncFields, total=False): ...

class TD3SyncFields(RunOptionsFields, TD3Fields, SyncFields, total=False): ...

class SACSyncFields(RunOptionsFields, SACFields, SyncFields, total=False): ...

class SACTwoLearnersFields(RunOptionsFields, SACFields, TwoLearnersFields, total=False): ...

class SACAnakinFields(RunOptionsFields, SACFields, AnakinFields, total=False): ...

class DDPGActorLearnerFields(RunOptionsFields, DDPGFields, ActorLearnerFields, total=False): ...

class QTOptBellmanUpdatersFields(RunOptionsFields, QTOptFields, BellmanUpdatersFields, total=False): ...

class ESEvolutionFields(RunOptionsFields, ESFields, EvolutionFields, total=False): ...

class ARSEvolutionFields(RunOptionsFields, ARSFields, EvolutionFields, total=False): ...

@overload
def train(
    system: Literal["ppo"] = ...,
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[PPOSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["a2c"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[A2CSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["pg"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[PGSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["impala", "seed"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[VTraceActorLearnerFields],
) -> Result: ...
@overload
def train(
    system: Literal["appo", "sample-factory"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[APPOActorLearnerFields],
) -> Result: ...
@overload
def train(
    system: Literal["dqn", "rainbow", "curl-rainbow"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DQNSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["apex-dqn"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DQNActorLearnerFields],
) -> Result: ...
@overload
def train(
    system: Literal["r2d2", "r2d3", "seed-r2d2"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[R2D2ActorLearnerFields],
) -> Result: ...
@overload
def train(
    system: Literal["anakin-ppo"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[PPOAnakinFields],
) -> Result: ...
@overload
def train(
    system: Literal["anakin-dqn"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DQNAnakinFields],
) -> Result: ...
@overload
def train(
    system: Literal["a3c"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[A2CAsyncGradientsFields],
) -> Result: ...
@overload
def train(
    system: Literal["async-dqn"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DQNAsyncGradientsFields],
) -> Result: ...
@overload
def train(
    system: Literal["gala"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[A2CGossipFields],
) -> Result: ...
@overload
def train(
    system: Literal["gorila"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DQNParameterServerFields],
) -> Result: ...
@overload
def train(
    system: Literal["ddpg"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DDPGSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["td3"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[TD3SyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["sac", "curl-sac"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[SACSyncFields],
) -> Result: ...
@overload
def train(
    system: Literal["async-curl-sac"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[SACTwoLearnersFields],
) -> Result: ...
@overload
def train(
    system: Literal["anakin-sac"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[SACAnakinFields],
) -> Result: ...
@overload
def train(
    system: Literal["apex-dpg"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[DDPGActorLearnerFields],
) -> Result: ...
@overload
def train(
    system: Literal["qt-opt"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[QTOptBellmanUpdatersFields],
) -> Result: ...
@overload
def train(
    system: Literal["es"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[ESEvolutionFields],
) -> Result: ...
@overload
def train(
    system: Literal["ars"],
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[ARSEvolutionFields],
) -> Result: ...
@overload
def train(
    system: str,
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    **options: Unpack[SharedFields],
) -> Result: ...
@overload
def train(
    system: object,
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    topology: object,
    **options: Any,
) -> Result: ...
@overload
def train(
    system: _Buildable,
    *,
    env: Any,
    env_options: Any = ...,
    torso: Any = ...,
    progress: Any = ...,
    on_step: Any = ...,
    on_evaluation: Any = ...,
    on_checkpoint: Any = ...,
    on_end: Any = ...,
    topology: object = ...,
    **options: Any,
) -> Result: ...

class Trainer(_Trainer):
    @overload
    def __init__(
        self,
        system: Literal["ppo"] = ...,
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[PPOSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["a2c"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[A2CSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["pg"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[PGSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["impala", "seed"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[VTraceActorLearnerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["appo", "sample-factory"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[APPOActorLearnerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["dqn", "rainbow", "curl-rainbow"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DQNSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["apex-dqn"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DQNActorLearnerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["r2d2", "r2d3", "seed-r2d2"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[R2D2ActorLearnerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["anakin-ppo"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[PPOAnakinFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["anakin-dqn"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DQNAnakinFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["a3c"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[A2CAsyncGradientsFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["async-dqn"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DQNAsyncGradientsFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["gala"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[A2CGossipFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["gorila"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DQNParameterServerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["ddpg"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DDPGSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["td3"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[TD3SyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["sac", "curl-sac"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[SACSyncFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["async-curl-sac"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[SACTwoLearnersFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["anakin-sac"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[SACAnakinFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["apex-dpg"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[DDPGActorLearnerFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["qt-opt"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[QTOptBellmanUpdatersFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["es"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[ESEvolutionFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: Literal["ars"],
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[ARSEvolutionFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: str,
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        **options: Unpack[SharedFields],
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: object,
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        topology: object,
        **options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        system: _Buildable,
        *,
        env: Any,
        env_options: Any = ...,
        torso: Any = ...,
        progress: Any = ...,
        on_step: Any = ...,
        on_evaluation: Any = ...,
        on_checkpoint: Any = ...,
        on_end: Any = ...,
        topology: object = ...,
        **options: Any,
    ) -> None: ...
