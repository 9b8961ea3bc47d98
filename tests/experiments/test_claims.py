"""What runs say about claims: which runs count, one family of comparisons, and who gets no verdict."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest import mock

import pytest

from experiments.results import claims, page
from taac.analysis.readers import run_records
from taac.analysis.statistics import permutations
from taac.errors import TaacError
from tests.experiments.test_results import write_run


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (0.80, 0.95, claims.AGREES),
        (0.89, 0.95, claims.AGREES),
        (0.70, 0.87, claims.AGREES_AS_READ),
        (0.91, 0.95, claims.AGREES_AS_READ),
        (0.70, 0.85, claims.DISAGREES),
        (0.93, 0.99, claims.DISAGREES),
        (0.60, 0.95, claims.OPEN),  # too wide to agree with anything
        (0.55, 0.87, claims.OPEN),
    ],
)
def test_a_published_fraction_is_judged_by_our_interval(low, high, verdict):
    assert claims.judged(low, high, 0.89, 0.03) == verdict


LOW, HIGH = [0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 11.0, 12.0, 13.0, 14.0]


def rows_on_claims(folder, better, worse, tasks=("Toy-v0",), seeds=5, published=0.5, repeated=1.0):
    """The rows of the campaign simple_control on Toy-v0; a return of None is of a run that diverged."""
    for method, values in {"taac": better, "sac": worse}.items():
        for seed, value in enumerate(values):
            ends = {"returns": (0.0, 0.0), "status": "diverged"} if value is None else {"returns": (0.0, value, value, value)}
            write_run(folder / method / str(seed), folder, seed, method=method, repeated=repeated, **ends)
    plan = {"tasks": list(tasks), "seeds": seeds}
    paper = {"fraction_repeated": {"by_task": {"Toy": published}}, "normalised_score_at_the_end": {}}
    planned = {**claims.listed(), "claims": [claim for claim in claims.listed()["claims"] if not claim.get("post_hoc")]}
    with mock.patch.object(claims, "listed", lambda: planned):
        rows = claims.rows({"simple_control": page.grouped(run_records.find(folder))}, {"simple_control": plan}, paper)
    assert {row.verdict for row in rows if row.task == "all tasks"} == {claims.NOT_RUN}
    on_toy = [row for row in rows if row.task == "Toy-v0"]
    assert len(on_toy) == 3
    return [row for row in on_toy if "SAC" in row.claim], next(row for row in on_toy if "repeats" in row.claim)


@pytest.mark.parametrize(
    "better, worse, verdict",
    [
        (HIGH, LOW, claims.AGREES),
        (LOW, HIGH, claims.DISAGREES),
        (HIGH, [*HIGH[:4], 14.5], claims.OPEN),
        ([94.0, 94.0, 94.0, 94.0, 0.0], [0.0] * 5, claims.OPEN),  # 4 of 5 solved: p = 10 / 210, and 2 claims
        ([94.0] * 5, [0.0] * 5, claims.AGREES),
        ([None, *HIGH[1:]], LOW, claims.OPEN),  # the worst of all, not left out
        ([None] * 5, LOW, claims.DISAGREES),
        (HIGH, LOW[:4], claims.WAITS),
        ([*HIGH, 15.0], LOW[:4], claims.WAITS),  # a seed that was not planned does not make up for one that was
        (HIGH, [], claims.NOT_RUN),
    ],
)
def test_a_claim_on_returns_is_judged_by_the_planned_seeds_of_both_methods(better, worse, verdict, tmp_path):
    rows, _ = rows_on_claims(tmp_path, better, worse)
    assert [row.verdict for row in rows] == [verdict] * 2
    assert not any("nan" in row.here for row in rows)


def test_all_planned_comparisons_count_also_where_one_is_complete(tmp_path):
    # Without overlap p is 2 / 252 at 5 seeds: below 0.05 / 6, of 2 claims on 3 tasks, and above 0.05 / 8.
    for tasks, verdict in ((3, claims.AGREES), (4, claims.OPEN)):
        rows, _ = rows_on_claims(tmp_path / str(tasks), HIGH, LOW, ["Toy-v0", *(f"Other-v{i}" for i in range(1, tasks))])
        assert [row.verdict for row in rows] == [verdict] * 2


def test_planned_seeds_begin_where_the_plan_says():
    groups = {("Toy-v0", "sac"): [SimpleNamespace(seed=seed) for seed in range(5)]}
    of = lambda plan: [r.seed for r in claims.planned_runs(groups, "Toy-v0", "sac", plan)]  # noqa: E731
    assert of({"seeds": 3}) == [0, 1, 2] and of({"seeds": 3, "first_seed": 1}) == [1, 2, 3]


def test_a_post_hoc_claim_has_no_verdict_and_counts_in_no_family(tmp_path):
    for method, values in {"taac": HIGH, "sac": LOW}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / method / str(seed), tmp_path, seed, method=method, returns=(value,) * 4)
    better = {"better": ["taac", "sac"], "measure": "area"}
    claims_made = [{"claim": "planned", **better}, {"claim": "later", **better, "post_hoc": True}]
    groups, plans = {"c": page.grouped(run_records.find(tmp_path))}, {"c": {"tasks": ["Toy-v0"], "seeds": 5}}
    assert claims.family_of(claims_made, plans["c"]) == 1
    first, second = claims.rows_of_returns(claims_made, "c", groups, plans)
    assert (first.verdict, second.verdict) == (claims.AGREES, claims.POST_HOC) and first.here == second.here
    # t = 10 with 8 degrees of freedom: 8.5e-06; 2 of 252 exchanges are as far apart
    assert first.p_values == second.p_values == "8.5e-06, 0.0079 (0.05)"
    third = claims.rows_of_returns([*claims_made, {"claim": "planned, too", **better}], "c", groups, plans)
    assert [row.p_values[-7:] for row in third] == ["(0.025)", " (0.05)", "(0.025)"]
    [waits] = claims.rows_of_returns(claims_made[1:], "c", groups, {"c": {"tasks": ["Toy-v0"], "seeds": 6}})
    assert waits.verdict == claims.WAITS


def test_the_interval_of_a_claim_is_bonferronis(tmp_path):
    # Variances 2.5 / 5 each: standard error 1, df 8; two claims: t(8, 97.5%) = 2.7515. Area: 3/4 of the values.
    rows, _ = rows_on_claims(tmp_path, [*HIGH, 99.0], LOW)  # the last seed was not planned
    assert [row.here for row in rows] == ["+7.5 [5.44, 9.56], n = 5, 5", "+10 [7.25, 12.8], n = 5, 5"]


@pytest.mark.parametrize(
    "returns, published, verdict",
    [
        (HIGH, 0.5, claims.DISAGREES),
        (HIGH, 0.25, claims.AGREES),
        (HIGH, 0.28, claims.AGREES_AS_READ),  # every run repeats a quarter, and 0.28 is within the error of reading it
        (HIGH, None, claims.OPEN),
        ([None, *HIGH[1:]], 0.5, claims.OPEN),  # of the survivors
        ([None] * 5, 0.5, claims.OPEN),
        (HIGH[:4], 0.5, claims.WAITS),
        ([], 0.5, claims.NOT_RUN),
    ],
)
def test_a_claim_on_a_fraction_is_judged_by_the_planned_seeds(returns, published, verdict, tmp_path):
    _, row = rows_on_claims(tmp_path, returns, LOW, published=published, repeated=0.25)
    assert row.verdict == verdict and "nan" not in row.here


def test_the_planned_seeds_can_decide_the_claims_of_their_campaign():
    listed = json.loads((page.HERE / "claims.json").read_text(encoding="utf-8"))["claims"]
    plans, checked = page.plans(), 0
    for folder, about in page.campaigns():
        of_page = [claim for claim in listed if claim["campaign"] == folder.name and "better" in claim]
        for compared in (of_page, about.get("differences", [])):
            family = claims.family_of(compared, about["planned"])
            for claim in compared:
                x, y = (claims.of_method(name, folder.name, about["planned"]["tasks"], {}, plans) for name in claim["better"])
                tasks = len(about["planned"]["tasks"]) if claim.get("pooled") else 1
                least = permutations.smallest_p_value([(x.seeds, y.seeds)] * tasks)
                assert family * least <= claims.LEVEL, (folder.name, claim["claim"])
                checked += 1
    assert checked > 0


TASKS = ("MountainCarContinuous-v0", "LunarLanderContinuous-v3")  # anchors: -33.21, 90 and -212.5, 200


def pooled_row(folder, taac, other, seeds=3):
    """The row of a pooled claim whose first method is of another campaign, with 4 runs a task. Runs' returns, by task."""
    for campaign, method, returns in (("first", "taac", taac), ("second", "sac_ez", other)):
        (folder / campaign).mkdir(parents=True)
        for task, values in zip(TASKS, returns):
            for seed, value in enumerate(values):
                ends = {"returns": (0.0, 0.0), "status": "diverged"} if value is None else {"returns": (value,) * 4}
                write_run(folder / campaign / task / str(seed), folder, seed, method=method, task=task, **ends)
    plans = {"first": {"tasks": [*TASKS], "seeds": 4}, "second": {"tasks": [*TASKS], "seeds": seeds}}
    groups = {name: page.grouped(run_records.find(folder / name)) for name in plans}
    claim = {"claim": "it helps", "better": ["first/taac", "sac_ez"], "measure": "area", "pooled": True}
    [row] = claims.rows_of_returns([claim], "second", groups, plans)
    return row


SOLVED, FAILED = ([90.0, 89.0, 88.0, 89.0], [200.0, 190.0, 180.0, 190.0]), ([-33.21, -32.0, -34.0], [-212.5, -200.0, -225.0])


def test_a_pooled_claim_compares_normalised_means_over_tasks_with_another_campaigns_runs(tmp_path):
    row = pooled_row(tmp_path, SOLVED, FAILED)
    assert (row.task, row.published, row.verdict) == (claims.EVERYWHERE, "taac above sac_ez", claims.AGREES)
    # Means over runs: 89 + 33.07 of 123.21, and 190 + 212.5 of 412.5; half the sum of 0.9907 and 0.9758
    assert row.here.startswith("+0.983 [") and row.here.endswith("], n = 4, 3")


def test_a_claim_of_two_planned_seeds_is_open(tmp_path):
    assert pooled_row(tmp_path, SOLVED, [values[:2] for values in FAILED], seeds=2).verdict == claims.OPEN


@pytest.mark.parametrize(
    "taac, other, verdict",
    [
        (SOLVED, (FAILED[0], FAILED[1][:2]), claims.WAITS),  # a seed is missing on one task
        ((SOLVED[0], SOLVED[1][:3]), FAILED, claims.WAITS),  # of the other method, whose campaign plans four
        (SOLVED, (FAILED[0], []), claims.NOT_RUN),
        (SOLVED, ([None] * 3, [None] * 3), claims.AGREES),
        ((SOLVED[0], [-212.5, -200.0, -225.0, -210.0]), (FAILED[0], [200.0, 190.0, 180.0]), claims.OPEN),
    ],
)
def test_a_pooled_claim_waits_for_all_tasks_and_weighs_them_equally(taac, other, verdict, tmp_path):
    assert pooled_row(tmp_path, taac, other).verdict == verdict


def test_evaluations_that_are_not_of_the_same_step_are_not_compared(tmp_path):
    """One method is also evaluated at step 0: its returns there are left out. Other steps are refused."""
    write_run(tmp_path / "a" / "0", tmp_path, returns=(1.0, 2.0, 3.0, 6.0))
    write_run(tmp_path / "b" / "0", tmp_path, returns=(1.0, 2.0, 3.0, 6.0), method="other")
    file = tmp_path / "b" / "0" / "evaluations.csv"
    head, *rows = file.read_text().splitlines()
    first = rows[0].split(",")
    first[head.split(",").index("env_steps")], first[head.split(",").index("return_mean")] = "0", "-1000"
    file.write_text("\n".join([head, ",".join(first), *rows]) + "\n")
    a, b = ([r for r in run_records.find(tmp_path) if r.method == m] for m in ("sac", "other"))
    assert [float(v[0]) for v in claims.scores(a, b, "area")] == [3.0, 3.0]
    file.write_text("\n".join([head, rows[0], rows[1]]) + "\n")
    a, b = ([r for r in run_records.find(tmp_path) if r.method == m] for m in ("sac", "other"))
    with pytest.raises(TaacError, match="due at other steps"):
        claims.scores(a, b, "area")


def test_runs_of_two_campaigns_are_compared_only_if_what_was_measured_is_alike(tmp_path):
    for name, settings in (("a", ""), ("b", "Evaluator.evaluation_episodes = 3\n"), ("c", "Learner.epsilon = 1e-8\n")):
        folder = tmp_path / name
        write_run(folder, tmp_path)
        (folder / "config.gin").write_text(f"Intervals.num_env_steps = 400\nEvaluator.evaluation_episodes = 10\n{settings}")
    a, b, c = ([r] for r in run_records.find(tmp_path))
    assert [float(v[0]) for v in claims.scores(a, c, "area")] == [3.0, 3.0]  # the methods themselves may differ
    with pytest.raises(TaacError, match=r"not comparable.*evaluation_episodes"):
        claims.scores(a, b, "area")


def test_an_undecided_claim_says_what_it_could_have_found(tmp_path):
    undecided, _ = rows_on_claims(tmp_path / "a", HIGH, [*HIGH[:4], 14.5])
    decided, _ = rows_on_claims(tmp_path / "b", HIGH, LOW)
    assert [row.here.count("n = 5, 5; detectable: ") for row in [*undecided, *decided]] == [1, 1, 0, 0]


def test_the_detectable_difference_is_that_of_tables_of_power(tmp_path):
    for method, values in {"taac": HIGH, "sac": [value + 0.5 for value in HIGH]}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / method / str(seed), tmp_path, seed, method=method, returns=(value,) * 4)
    claim = {"claim": "it helps", "better": ["taac", "sac"], "measure": "area"}
    groups, plans = {"c": page.grouped(run_records.find(tmp_path))}, {"c": {"tasks": ["Toy-v0"], "seeds": 5}}
    [row] = claims.rows_of_returns([claim], "c", groups, plans)
    # Two samples of 5 at a level of 5%: 2.024 standard deviations of sqrt(2.5) are found with a power of 80%.
    assert row.here.endswith("n = 5, 5; detectable: 3.2")


def test_the_papers_scores_are_beside_claims_on_all_tasks():
    row = claims.Row("it helps", claims.EVERYWHERE, "-", "taac above sac", claims.NOT_RUN)
    scores = {"taac": 0.96, "sac": 0.7}
    assert claims.with_scores(row, scores).published == "taac above sac: 0.96 and 0.70"
    for other in (row._replace(task="Toy-v0"), row._replace(published="taac above taac_ntd")):
        assert claims.with_scores(other, scores) == other
