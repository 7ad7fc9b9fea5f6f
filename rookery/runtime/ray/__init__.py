"""The Ray runtime: the same workers, unchanged, as actors of a Ray cluster. The only folder that imports ray.

    collector actor ──rollout, through the object store──▶ fetcher thread ──copied──▶ the queue's slot ──▶ learner
          ▲────────────parameters: put once, passed by reference, on a lane beside the calls────────────────┘

| file | what is in it |
|---|---|
| `runtime.py` | `RayRuntime`: spawns workers, waits for them, counts the room that is left, closes |
| `handle.py` | `RayHandle`: the driver's side of one worker |
| `actor.py` | `WorkerActor`: the cluster's side of it |
| `object_store.py` | arguments and results on their way: what is copied, what is passed by reference |
| `fetcher.py` | the thread that settles futures and copies rollouts out of the object store |
| `liveness.py`, `reachability.py` | the head's heartbeat, and which machines can be reached |
| `cluster.py` | starts a Ray of our own, joins one that runs, leaves it; tokens |
| `checks.py` | resources and versions, held against what was asked for |
| `errors.py` | Ray's errors in our words |
| `cleanup.py` | ends all processes of a Ray that was started here |
"""

from rookery.runtime.ray.errors import ClusterLost, InsecureCluster
from rookery.runtime.ray.handle import RayHandle
from rookery.runtime.ray.object_store import Kept, Shared
from rookery.runtime.ray.runtime import RayRuntime

__all__ = ["ClusterLost", "InsecureCluster", "Kept", "RayHandle", "RayRuntime", "Shared"]
