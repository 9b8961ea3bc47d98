"""The table of summary tags is the only source of tags."""

from __future__ import annotations

import pytest

from taac.runs.layout import EpisodeSummary
from taac.training.summaries import PHASES, SummaryWriter, known_tags


def test_an_unknown_tag_is_refused(tmp_path):
    writer = SummaryWriter(tmp_path)
    with pytest.raises(KeyError, match="loss/unheard_of"):
        writer.scalars({"loss/unheard_of": 1.0}, 0)
    writer.close()


def test_every_episode_average_has_a_tag():
    names = {"return" if f == "return_mean" else f for f in EpisodeSummary._fields} - {"episodes"}
    for phase in PHASES:
        assert {f"{phase}/{name}" for name in names} == {t for t in known_tags() if t.startswith(f"{phase}/")}
