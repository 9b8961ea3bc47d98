"""Who is measured: our methods, and peers."""

from __future__ import annotations

from typing import Any

from experiments.benchmarks.common import OURS, PEERS, Contender

# SAC's actor as peers have it: it learns on s alone, where ours by default learns on both frames of a transition.
ON_S_ALONE = "SacAlgorithm.actor_on_last_frame = False"
SAC, SAC_S, TAAC = "SAC", "SAC, actor on s alone", "TAAC, T = 4"
PRIORITIZED = "SAC, prioritised replay"
COMPILED, THREE, BFLOAT16 = ", compiled", ", compiled, bfloat16x3", ", compiled, bfloat16"  # after a name
SB3, SBX = "SB3", "SBX"
OURS_OPTIONS: dict[str, dict[str, Any]] = {
    SAC: {"method": "sac"},
    SAC_S: {"method": "sac", "gin_params": [ON_S_ALONE]},
    TAAC: {"method": "taac"},
    PRIORITIZED: {
        "method": "sac",
        "gin_params": ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"],
    },
}
_PRODUCTS = {COMPILED: [], THREE: ["Learner.matmul = 'bfloat16x3'"], BFLOAT16: ["Learner.matmul = 'bfloat16'"]}
for _name in (SAC_S, TAAC):
    _options = OURS_OPTIONS[_name]
    for _more, _params in _PRODUCTS.items():
        _params = [*_options.get("gin_params", []), "create_agent.compile = True", *_params]
        OURS_OPTIONS[_name + _more] = {**_options, "gin_params": _params}
PEERS_OPTIONS: dict[str, dict[str, Any]] = {SB3: {"peer": "sb3"}, SBX: {"peer": "sbx"}}


def ours(name: str, label: str | None = None, **options: Any) -> Contender:
    return Contender(label or name, OURS, {**OURS_OPTIONS[name], **options})


def peer(name: str, label: str | None = None, **options: Any) -> Contender:
    return Contender(label or name, PEERS, {**PEERS_OPTIONS[name], **options})
