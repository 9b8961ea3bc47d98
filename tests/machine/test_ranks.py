"""What the processes that train one run add up, average and tell one another."""

from __future__ import annotations

import copy
import os

import pytest
import torch

from taac.errors import DivergedError, EnvironmentFailed, RankLost, TaacError
from taac.machine.ranks import ALONE, join
from tests.ranks import Died, together


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch):
    assert join() is ALONE and ALONE.first and ALONE.share("x", 3) == 3
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join() is ALONE


def test_alone_everything_is_returned_as_it_was_given():
    tensor, error = torch.ones(2), ValueError("x")
    assert ALONE.average([tensor])[0] is tensor and ALONE.stack(tensor)[0] is tensor
    assert ALONE.exchange(error, [3]) == ([3], error) and ALONE.exchange(None, [])[1] is None
    assert ALONE.gather(5) == [5] and ALONE.from_first(5) == 5
    with pytest.raises(ValueError, match="x"), ALONE.together():
        raise error


def exchanged(ranks):
    n = ranks.number
    own = torch.full((2, 3), float(n))
    means = ranks.average([own, torch.tensor(10.0 * n), torch.tensor([n + 1], dtype=torch.int32)])
    copied = [torch.tensor(n == 0), torch.tensor([n, n]), torch.tensor(float(n), dtype=torch.float64)]
    ranks.copy_first(copied)
    return {
        "means": [mean.tolist() for mean in means],
        "untouched": own.tolist(),
        "stacked": [tensor.tolist() for tensor in ranks.stack(torch.tensor([n, 2 * n]))],
        "copied": [tensor.tolist() for tensor in copied],
        "sums": ranks.exchange(None, [n, 5]),
        "gathered": ranks.gather({"from": n}),
        "first": ranks.from_first(f"of {n}"),
        "share": ranks.share("batch", 12),
        "copied_alone": copy.deepcopy(ranks) is ALONE,
    }


def test_three_ranks_exchange_numbers():
    found = together(exchanged, count=3)
    for n, rank in enumerate(found):
        assert rank["means"] == [[[1.0] * 3] * 2, 10.0, [2.0]], "means of 0, 1, 2; of 0, 10, 20; of 1, 2, 3"
        assert rank["untouched"] == [[n] * 3] * 2
        assert rank["stacked"] == [[0, 0], [1, 2], [2, 4]]
        assert rank["copied"] == [True, [0, 0], 0.0]
        assert rank["sums"] == ([3, 15], None)
        assert rank["gathered"] == [{"from": 0}, {"from": 1}, {"from": 2}]
        assert rank["first"] == "of 0" and rank["share"] == 4 and rank["copied_alone"]


def largest(ranks):
    mean = ranks.average([torch.tensor([3e38, float("nan") if ranks.number else 0.0])])[0]
    return mean.tolist()


def test_means_do_not_overflow_and_one_nan_is_everybodys():
    for mean in together(largest):
        assert mean[0] == pytest.approx(3e38) and mean[1] != mean[1]


def fails(ranks, error):
    raised = []
    for number in (0, 1):
        try:
            with ranks.together():
                if ranks.number == number:
                    raise error
        except Exception as found:
            raised.append((type(found), str(found)))
    return raised


@pytest.mark.parametrize(
    "error, elsewhere, message",
    [
        (DivergedError("no"), DivergedError, "no"),
        (EnvironmentFailed("no"), EnvironmentFailed, "no"),
        (TaacError("no"), TaacError, "no"),
        (KeyError("x"), TaacError, "KeyError: 'x'"),
    ],
)
def test_what_fails_in_one_rank_fails_in_all(error, elsewhere, message):
    first, second = together(fails, error)
    assert first == [(type(error), str(error)), (elsewhere, f"rank 1: {message}")]
    assert second == [(elsewhere, f"rank 0: {message}"), (type(error), str(error))]


def compare(ranks):
    same = {"a": torch.zeros(3), "is_log": torch.tensor(True), "b": torch.ones((), dtype=torch.float64)}
    ranks.check_identical(same, "before")
    ranks.check_identical({**same, "b": same["b"] * (1 + 1e-15 * ranks.number)}, "after 7 environment steps")


def test_a_bit_that_differs_is_found_in_all_ranks():
    for error in together(compare):
        assert type(error) is TaacError
        assert "after 7 environment steps, rank 1 no longer holds the same 'b' as rank 0" in str(error)


def dies(ranks):
    if ranks.number == 1:
        os._exit(9)
    ranks.exchange(None, [1])


def test_a_rank_that_has_died_is_noticed():
    lost, died = together(dies)
    assert isinstance(died, Died) and isinstance(lost, RankLost)
    assert "rank 0 of 2 cannot reach the others: one has ended" in str(lost)


def hangs(ranks, read, write):
    """The last rank does nothing until the first has given it up."""
    if ranks.number == 1:
        os.read(read, 1)
        return
    try:
        ranks.exchange(None, [1])
    finally:
        os.write(write, b"!")


def test_a_rank_that_hangs_is_lost_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr("taac.machine.ranks.join", lambda: join(timeout=1.0))
    lost, _ = together(hangs, *os.pipe())
    assert isinstance(lost, RankLost) and "hangs or evaluates for longer than --rank_timeout" in str(lost)


def cannot_join(ranks):
    ranks.average([torch.zeros(1), torch.zeros(1, device="meta")])


def test_an_error_of_ones_own_is_no_lost_rank():
    """Else a run that is short of memory would be called resumable, and resumed again and again."""
    for error in together(cannot_join):
        assert isinstance(error, RuntimeError) and "device" in str(error)


def test_what_cannot_be_divided_is_refused():
    first, second = together(lambda ranks: ranks.share("Trainer.batch_size", 33))
    assert "Trainer.batch_size 33 is the number over all ranks" in str(first) and "bind a multiple of 2" in str(second)


def averaged(ranks):
    own = float(ranks.number)
    loss, total, extra, statistics = ranks.average_update(
        [], torch.tensor(own), torch.tensor(10 + own), {"a": torch.tensor(20 + own)}, {"s": torch.tensor(30 + own)}
    )
    return [float(loss), float(total), float(extra["a"]), float(statistics["s"])]


def test_the_scalars_of_an_update_keep_their_names():
    assert together(averaged) == [[0.5, 10.5, 20.5, 30.5]] * 2
