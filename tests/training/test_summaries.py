"""The table of summary tags is the only source of tags, and the README shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from taac.runs.layout import EpisodeSummary
from taac.training.summaries import PHASES, TAGS, SummaryWriter, known_tags

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_an_unknown_tag_is_refused(tmp_path):
    writer = SummaryWriter(tmp_path)
    with pytest.raises(KeyError, match="loss/unheard_of"):
        writer.scalars({"loss/unheard_of": 1.0}, 0)
    writer.close()


def test_every_episode_average_has_a_tag():
    names = {"return" if f == "return_mean" else f for f in EpisodeSummary._fields} - {"episodes"}
    for phase in PHASES:
        assert {f"{phase}/{name}" for name in names} == {t for t in known_tags() if t.startswith(f"{phase}/")}


@pytest.mark.parametrize("tag", TAGS)
def test_the_readme_documents_every_tag(tag):
    names = [tag.format(phase=p) for p in PHASES] if "{phase}" in tag else [tag]
    assert f"| {', '.join(f'`{n}`' for n in names)} | {TAGS[tag]} |" in README
    assert "|" not in TAGS[tag], "it would break the table"
