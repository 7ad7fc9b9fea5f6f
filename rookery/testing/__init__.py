"""For those who extend Rookery: checks of agents, topologies and environments, fakes, and a runtime in lock-step.

| name | what it does |
|---|---|
| `check_agent`, `check_topology`, `check_env`, … | assert the contracts of rookery/types.py and say what is broken |
| `ScriptedPool` | environments whose every number can be foretold |
| `counting_agent`, `summing_agent`, `ledger_agent` | agents whose parameters say what they have learned from |
| `LockstepRuntime` | a runtime without threads, on a simulated clock |
| `even`, `paced`, `shuffled`, `kill_at`, `kill_every` | schedules for it |
| `RowLedger`, `record`, `ledger_workers` | what a learner was given, row by row |
| `play` and its reference | a pool's answers, and what they should have been |

It is imported by tests, and by no module of the library. docs/testing.md has an example.
"""

from rookery.testing.agents import counting_agent, counting_params, ledger_agent, summing_agent
from rookery.testing.check_agent import check_agent
from rookery.testing.check_env import check_env, check_pool
from rookery.testing.check_topology import check_topology
from rookery.testing.contracts import ContractBroken
from rookery.testing.experience import random_batch, random_observation, random_rollout
from rookery.testing.ledger import LearnedRow, RowLedger, ledger_workers, record, rows_of
from rookery.testing.lockstep import Deadlock, LockstepHandle, LockstepRuntime
from rookery.testing.playing import (
    Playthrough,
    advance,
    assert_next_step_autoreset,
    assert_same,
    play,
    random_action,
    reference_episodes,
)
from rookery.testing.schedules import ScheduledCall, Seconds, even, kill_at, kill_every, never, paced, shuffled
from rookery.testing.scripted_pool import (
    SPEC,
    ScriptedPool,
    Slot,
    episode_length,
    scripted_observation,
    scripted_step,
    slow_steps,
    truncates,
)
from rookery.testing.snapshots import assert_same_rollout, checkpointed, digest, dirty_rollout, drive_until

__all__ = [
    "SPEC", "ContractBroken", "Deadlock", "LearnedRow", "LockstepHandle", "LockstepRuntime", "Playthrough", "RowLedger",
    "ScheduledCall", "ScriptedPool", "Seconds", "Slot", "advance", "assert_next_step_autoreset", "assert_same",
    "assert_same_rollout", "check_agent", "check_env", "check_pool", "check_topology", "checkpointed", "counting_agent",
    "counting_params", "digest", "dirty_rollout", "drive_until", "episode_length", "even", "kill_at", "kill_every",
    "ledger_agent", "ledger_workers", "never", "paced", "play", "random_action", "random_batch", "random_observation",
    "random_rollout", "record", "reference_episodes", "rows_of", "scripted_observation", "scripted_step", "shuffled",
    "slow_steps", "summing_agent", "truncates",
]  # fmt: skip
