"""What a replay buffer holds, and another one that comes to hold the same."""

from __future__ import annotations


def _frames(replay):
    own = getattr(replay, "agents", replay)
    return own.frames(0, own.size)


def held(replay):
    """Its state, and copies of its frames."""
    return {**replay.state_dict(), **{name: leaf.clone() for name, leaf in _frames(replay).items()}}


def restore(replay, state):
    """Restores `held`, as a checkpoint does: first the state, then the frames."""
    replay.load_state_dict({name: value for name, value in state.items() if not name.startswith("frames/")})
    for name, leaf in _frames(replay).items():
        leaf.copy_(state[name])
