"""What a replay buffer holds, and another one that comes to hold the same."""

from __future__ import annotations


def held(replay):
    """Its state, and copies of its frames."""
    return {**replay.state_dict(), **{name: leaf.clone() for name, leaf in replay.ring.frames(0, replay.size).items()}}


def restore(replay, state):
    """Restores `held`, as a checkpoint does: first the state, then the frames."""
    replay.load_state_dict({name: value for name, value in state.items() if not name.startswith("frames/")})
    for name, leaf in replay.ring.frames(0, replay.size).items():
        leaf.copy_(state[name])
