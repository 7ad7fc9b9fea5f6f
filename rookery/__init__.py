"""Rookery: distributed reinforcement learning. Choose the algorithm, the topology and the runtime independently."""
