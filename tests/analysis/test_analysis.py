"""Reading run folders and drawing them."""

from __future__ import annotations

import csv
import json
import warnings

import numpy as np
import pytest

from taac.analysis import plots, runs
from taac.errors import TaacError
from taac.training.run_folder import EVALUATION_COLUMNS
from taac.training.summaries import SummaryWriter


def make_run(folder, steps=(100, 200, 300)):
    """A run folder with known numbers: at step s the return is s / 10 and the loss 1 / s."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"environment": "Toy-v0", "seed": 3}))
    with open(folder / "evaluations.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, EVALUATION_COLUMNS)
        writer.writeheader()
        for s in steps:
            row = dict.fromkeys(EVALUATION_COLUMNS, 0)
            writer.writerow({**row, "env_steps": s, "return_mean": s / 10, "fraction_repeated": 0.25})
    writer = SummaryWriter(folder)
    for s in steps:
        writer.scalars({"loss/critic": 1 / s}, s)
    writer.close()
    return folder


def test_what_was_written_is_read_back(tmp_path):
    folder = make_run(tmp_path / "run")
    evaluations, scalars = runs.read_evaluations(folder), runs.read_scalars(folder)
    assert evaluations["env_steps"].tolist() == [100, 200, 300]
    assert evaluations["return_mean"].tolist() == [10, 20, 30]
    assert scalars["loss/critic"].env_steps.tolist() == [100, 200, 300]
    np.testing.assert_allclose(scalars["loss/critic"].value, [0.01, 0.005, 1 / 300], rtol=1e-6)
    assert runs.read_run(folder) == {"environment": "Toy-v0", "seed": 3}


def test_what_a_resumed_run_did_again_is_there_once(tmp_path):
    folder = make_run(tmp_path / "run")
    # Killed after 300, resumed from a checkpoint at 150: 200 and 300 come again, with other values.
    writer = SummaryWriter(folder, purge_step=151)
    for s in (200, 300, 400):
        writer.scalars({"loss/critic": float(s)}, s)
    writer.close()
    scalar = runs.read_scalars(folder)["loss/critic"]
    assert scalar.env_steps.tolist() == [100, 200, 300, 400]
    np.testing.assert_allclose(scalar.value, [0.01, 200, 300, 400], rtol=1e-6)


def test_a_run_of_one_evaluation_is_drawn_without_warnings(tmp_path):
    folder = make_run(tmp_path / "run", steps=(100,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture, table = plots.plot_run(folder)
    assert picture.stat().st_size > 1000
    with open(table) as file:
        assert next(csv.DictReader(file))["tag"] == "loss/critic"


def test_folders_that_cannot_be_drawn(tmp_path):
    with pytest.raises(TaacError, match=r"evaluations\.csv does not exist"):
        plots.plot_run(tmp_path)
    with pytest.raises(TaacError, match="no evaluation yet"):
        plots.plot_run(make_run(tmp_path / "empty", steps=()))
    damaged = make_run(tmp_path / "damaged")
    (damaged / "evaluations.csv").write_text("env_steps,return_mean\n100,ten\n")
    with pytest.raises(TaacError, match="damaged"):
        plots.plot_run(damaged)
    broken = make_run(tmp_path / "broken")
    (broken / "run.json").write_text("{")
    with pytest.raises(TaacError, match=r"run\.json cannot be read"):
        plots.plot_run(broken)
