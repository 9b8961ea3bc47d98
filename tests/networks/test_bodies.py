"""Bodies against recomputations in float64, and batch normalisation against torch's and against equations."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from taac.errors import TaacError
from taac.networks import ActorNetwork, BatchNorm, CriticEnsemble, FlashBody, LayerNorm, MlpBody, SimbaBody, SimbaV2Body
from taac.networks.batch_statistics import batch_statistics
from taac.networks.bodies import OrthogonalLinear, RMSNorm, projections

N, M, SIZE = 2, 12, 5


def moved(module):
    """A module with parameters and running statistics that are nothing special."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.rand(p.shape, generator=generator))
        for name, b in module.named_buffers():
            if name.endswith(("mean", "variance")):
                b.add_(0.5 * torch.rand(b.shape, generator=generator))
    return module.double()


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class Plain(BatchNorm):
    """In float64, which `forward` would round."""

    def forward(self, x):
        return super().forward(_Double(x))


class _Double:
    def __init__(self, x):
        self.x = x

    def float(self):
        return self.x


def by_torch(norm, n):
    other = torch.nn.BatchNorm1d(SIZE, eps=norm.epsilon, momentum=norm.momentum).double()
    with torch.no_grad():
        for own, value in zip((other.weight, other.bias, other.running_mean, other.running_var),
                              (norm.scale, norm.bias, norm.mean, norm.variance)):  # fmt: skip
            own.copy_(value[n, 0])
    return other


def test_batch_normalisation_is_torchs():
    norm, x = moved(Plain(N, SIZE, momentum=0.1, unbiased=True)), drawn(N, M, SIZE)
    others = [by_torch(norm, n) for n in range(N)]
    for n in range(N):
        torch.testing.assert_close(norm(x)[n], others[n].eval()(x[n]))
    x.requires_grad_()
    with batch_statistics():
        found = norm(x)
    expected = torch.stack([others[n].train()(x[n]) for n in range(N)])
    torch.testing.assert_close(found, expected)
    weights = drawn(N, M, SIZE)
    torch.testing.assert_close(
        *(torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (found, expected))
    )
    for n in range(N):
        torch.testing.assert_close(norm.mean[n, 0], others[n].running_mean)
        torch.testing.assert_close(norm.variance[n, 0], others[n].running_var)


def test_a_row_of_weight_0_is_as_if_it_were_not_there_and_one_of_weight_2_as_if_there_were_two():
    x, weights = drawn(N, M, SIZE), torch.ones(M, dtype=torch.float64)
    weights[0], weights[1] = 0.0, 2.0
    one, other = moved(Plain(N, SIZE)), moved(Plain(N, SIZE))
    with batch_statistics(weights):
        found = one(x)
    with batch_statistics():
        expected = other(torch.cat([x[:, 1:], x[:, 1:2]], 1))
    torch.testing.assert_close(found[:, 1:], expected[:, :-1])
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.variance, other.variance)


def test_statistics_move_only_where_they_are_gathered():
    norm, x = moved(Plain(N, SIZE)), drawn(N, M, SIZE)
    before = norm.mean.clone()
    norm.train()(x)
    with batch_statistics(update=False):
        norm(x)
    assert torch.equal(norm.mean, before) and float(norm.moves) == 0
    with batch_statistics():
        norm(x)
    assert float(norm.moves) == 1 and not torch.equal(norm.mean, before)


def test_renormalisation_number_by_number():
    norm, x = moved(Plain(N, SIZE, epsilon=1e-3, renorm_after=1, r_max=1.2, d_max=0.3)), drawn(N, M, SIZE)
    mean, variance = norm.mean.clone(), norm.variance.clone()
    with batch_statistics():  # before it begins: batch normalisation
        first = norm(x)
    plain = moved(Plain(N, SIZE, epsilon=1e-3))
    with batch_statistics():
        torch.testing.assert_close(first, plain(x))
    mean, variance = norm.mean.clone(), norm.variance.clone()
    with batch_statistics(), torch.no_grad():
        found = norm(x)
    scale, bias = norm.scale.detach(), norm.bias.detach()
    clipped = set()
    for n in range(N):
        for i in range(SIZE):
            column = x[n, :, i].tolist()
            m = sum(column) / M
            std = math.sqrt(sum((c - m) ** 2 for c in column) / M + 1e-3)
            sigma = math.sqrt(float(variance[n, 0, i]) + 1e-3)
            r, d = std / sigma, (m - float(mean[n, 0, i])) / sigma
            clipped |= {"r"} if not 1 / 1.2 < r < 1.2 else {"r inside"}
            clipped |= {"d"} if abs(d) > 0.3 else {"d inside"}
            r, d = min(max(r, 1 / 1.2), 1.2), min(max(d, -0.3), 0.3)
            for k in range(M):
                normal = (column[k] - m) / std * r + d
                expected = normal * float(scale[n, 0, i]) + float(bias[n, 0, i])
                assert float(found[n, k, i]) == pytest.approx(expected, rel=1e-9)
    assert clipped >= {"r", "d", "d inside"}


def test_limits_of_1_and_0_are_batch_normalisation():
    one, other, x = moved(Plain(N, SIZE, renorm_after=0, r_max=1.0, d_max=0.0)), moved(Plain(N, SIZE)), drawn(N, M, SIZE)
    with batch_statistics():
        torch.testing.assert_close(one(x), other(x))


def test_where_batch_and_running_statistics_agree_renormalisation_is_what_acts():
    norm, x = moved(Plain(N, SIZE, renorm_after=0)), drawn(N, M, SIZE)
    with torch.no_grad():
        norm.mean.copy_(x.mean(1, keepdim=True))
        norm.variance.copy_(x.var(1, unbiased=False, keepdim=True))
    expected = norm(x)
    with batch_statistics():
        torch.testing.assert_close(norm(x), expected)


# Bodies ----------------------------------------------------------------------------------------------------------------


def layer_norm(x, norm, n):
    mean = x.mean(-1, keepdim=True)
    normal = (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + norm.epsilon).sqrt()
    return normal * norm.scale[n, 0] + norm.bias[n, 0]


def linear(x, layer, n):
    y = x @ layer.weight[n]
    return y if layer.bias is None else y + layer.bias[n, 0]


def running(x, norm, n):
    return (x - norm.mean[n, 0]) / (norm.variance[n, 0] + norm.epsilon).sqrt() * norm.scale[n, 0] + norm.bias[n, 0]


def simba(x, body, n):
    x = linear(x, body.embed, n)
    for block in body.blocks:
        x = x + linear(linear(layer_norm(x, block.norm, n), block.widen, n).clamp(min=0), block.narrow, n)
    return layer_norm(x, body.norm, n)


def scaled(x, scaler, n):
    return x * scaler.factor[n, 0] * scaler.unit_of_factor


def unit(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def simbav2(x, body, n):
    x = unit(torch.cat([x, torch.full_like(x[:, :1], 3.0)], -1))
    x = unit(scaled(linear(x, body.embed, n), body.scaler, n))
    for block in body.blocks:
        inner = scaled(linear(x, block.widen, n), block.scaler, n).clamp(min=0) + 1e-8
        x = unit(x + block.step.factor[n, 0] * block.step.unit_of_factor * (unit(linear(inner, block.narrow, n)) - x))
    return x


def flash(x, body, n):
    x = linear(running(x, body.norm_input, n), body.embed, n)
    for block in body.blocks:
        wide, first, _, narrow, second, _ = block.layers
        hidden = running(linear(x, wide, n), first, n).clamp(min=0)
        x = x + running(linear(hidden, narrow, n), second, n).clamp(min=0)
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * body.norm.scale[n, 0]


def mlp(x, body, n):
    return layer_norm(linear(x, body.layers[0], n), body.layers[1], n).clamp(min=0)


def crossq(x, body, n):
    return running(linear(running(x, body.layers[0], n), body.layers[1], n).clamp(min=0), body.layers[3], n)


def xqc(x, body, n):
    layers = body.layers
    for linear_, norm in ((layers[1], layers[2]), (layers[4], layers[5])):
        x = running(linear(running(x, layers[0], n) if linear_ is layers[1] else x, linear_, n), norm, n).clamp(min=0)
    return x


def droq(x, body, n):
    torch.manual_seed(5)  # as before `body`; what is kept is divided by its probability
    kept = torch.empty(N, len(x), 6).bernoulli_(0.75) / 0.75
    return layer_norm(linear(x, body.layers[0], n) * kept[n], body.layers[2], n).clamp(min=0)


def rms(x, body, n):
    x = linear(x, body.layers[0], n)
    return (x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * body.layers[1].scale[n, 0]).clamp(min=0)


BODIES = {
    "SimBa": (SimbaBody(SIZE, N, width=6, blocks=2), simba), "Flash": (FlashBody(SIZE, N, width=6, blocks=2), flash),
    "SimbaV2": (SimbaV2Body(SIZE, N, width=6, blocks=2), simbav2),
    "layer norm": (MlpBody(SIZE, N, hidden_layers=(6,)), mlp),
    "CrossQ": (MlpBody(SIZE, N, hidden_layers=(6,), norm=BatchNorm, norm_input=True, norm_last=True), crossq),
    "XQC": (MlpBody(SIZE, N, hidden_layers=(6, 7), norm=BatchNorm, norm_input=True, unit_weights=True), xqc),
    "DroQ": (MlpBody(SIZE, N, hidden_layers=(6,), dropout=0.25), droq),
    "RMS": (MlpBody(SIZE, N, hidden_layers=(6,), norm=RMSNorm), rms),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_each_network_and_a_step_of_it_against_a_recomputation(name):
    """Outputs, gradients of all parameters, and norms of 1 after a step where they are kept."""
    body, by_hand = BODIES[name]
    body = moved(copy.deepcopy(body)).float()
    x, double = drawn(N, M, SIZE).float(), copy.deepcopy(body).double()
    torch.manual_seed(5)
    found, expected = body(x), torch.stack([by_hand(x[n].double(), double, n) for n in range(N)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    weights = drawn(*found.shape)
    found.backward(weights.float())
    expected.backward(weights)
    for own, other in zip(body.parameters(), double.parameters(), strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=1e-4, atol=1e-4)
    torch.optim.SGD(body.parameters(), 0.1).step()
    for part in projections(body):
        before = [p.clone() for p in part.parameters(recurse=False)]
        part.project()
        if isinstance(part, OrthogonalLinear):
            assert torch.allclose(part.weight, before[0] / torch.linalg.vector_norm(before[0], dim=1, keepdim=True), atol=1e-6)
        else:
            length = torch.cat(before, -1).square().sum(-1, keepdim=True).sqrt() / before[0].shape[-1] ** 0.5
            assert all(torch.allclose(p, old / length, atol=1e-5) for p, old in zip(part.parameters(recurse=False), before))


HEADS = {"SimBa": False, "Flash": True, "XQC": True, "SimbaV2": True, "layer norm": None, "CrossQ": None, "RMS": None}


@pytest.mark.parametrize("name, unit_weights", HEADS.items())
def test_heads_are_linear_with_a_bias_and_begin_as_published(name, unit_weights):
    """Orthonormal, and kept at norm 1 where hidden layers are; None: as torch's layers or flax's."""
    head = BODIES[name][0].head(2)
    last = head[-1] if name == "SimbaV2" else head
    assert last.weight.shape[0] == N and last.bias.shape == (N, 1, 2)
    if unit_weights is not None:
        assert last.unit == unit_weights and not last.bias.any()
        torch.testing.assert_close(last.weight.mT @ last.weight, torch.eye(2).expand(N, 2, 2), atol=1e-5, rtol=0)
    head = moved(head)
    x = drawn(N, M, last.weight.shape[1])
    for n in range(N):
        inner = scaled(linear(x[n], head[0], n), head[1], n) if name == "SimbaV2" else x[n]
        torch.testing.assert_close(head(x)[n], linear(inner, last, n))


def test_layers_that_begin_orthogonal_and_stay_at_norm_1():
    wide = OrthogonalLinear(N, 4, 8, unit=True)
    torch.testing.assert_close(torch.linalg.vector_norm(wide.weight, dim=1), torch.ones(N, 8))
    narrow = OrthogonalLinear(N, 8, 4, gain=2.0)
    torch.testing.assert_close(narrow.weight.mT @ narrow.weight, 4.0 * torch.eye(4).expand(N, 4, 4), atol=1e-5, rtol=0)
    norm = RMSNorm(N, 6, unit=True)
    with torch.no_grad():
        norm.scale.mul_(3.0)
    norm.project()
    torch.testing.assert_close(torch.linalg.vector_norm(norm.scale, dim=-1), torch.full((N, 1), 6**0.5))


def test_simbav2_begins_as_published():
    """Factors of sqrt(2 / d) and sqrt(2 / d) / 2, steps of 1 / (n + 1) that move faster, a head with factors of 1."""
    body = SimbaV2Body(3, N, width=8, blocks=2)
    for scaler, factor, rate in (
        (body.scaler, 0.5, 1.0), (body.blocks[0].scaler, 0.25, 1.0), (body.blocks[1].step, 1 / 3, 8**0.5 / 3),
        (body.head(5)[1], 1.0, 1.0),
    ):  # fmt: skip
        found = scaler(torch.ones(N, 1, 1))
        torch.testing.assert_close(found, torch.full_like(found, factor))
        torch.testing.assert_close(torch.autograd.grad(found.sum(), scaler.factor)[0], torch.full_like(found, rate))
    first, _, last = body.head(5)
    assert first.bias is None and last.bias is not None and (first.unit, last.unit) == (True, True)
    torch.testing.assert_close(torch.linalg.vector_norm(body(torch.randn(N, M, 3)), dim=-1), torch.ones(N, M))


def test_a_smooth_log_std_reaches_its_limits_only_at_infinity():
    actor = ActorNetwork(3, 2, body=lambda i, n: MlpBody(i, n, hidden_layers=(4,)), smooth_log_std=True, log_std_min=-10.0)
    actor.requires_grad_(False)
    mean, log_std = actor(torch.randn(7, 3))
    u = actor.head(actor.hidden(torch.zeros(1, 1, 3)))
    assert mean.shape == log_std.shape == (7, 2) and u.shape == (1, 1, 4)
    expected = -10 + 12 * (1 + math.tanh(float(u[0, 0, 2]))) / 2
    assert float(actor(torch.zeros(3))[1][0]) == pytest.approx(expected, rel=1e-5)


def test_critics_and_actors_of_any_rank():
    critics = CriticEnsemble(SIZE, body=lambda i, n: SimbaBody(i, n, width=6, blocks=1), num_choices=3)
    assert critics(torch.zeros(4, 7, 2), torch.zeros(4, 7, 3)).shape == (2, 4, 7, 3)
    assert CriticEnsemble(SIZE, reward_dim=4, body=LayerNormed)(torch.zeros(7, SIZE)).shape == (2, 7, 4)


class LayerNormed(MlpBody):
    def __init__(self, input_size, networks):
        super().__init__(input_size, networks, hidden_layers=(6,), norm=LayerNorm)


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: BatchNorm(1, 2, momentum=0.0), "0 < momentum <= 1"),
        (lambda: BatchNorm(1, 2, r_max=0.5), "r_max >= 1"),
        (lambda: BatchNorm(1, 2, renorm_after=-5), "renorm_after >= 0 or None, got .* and -5"),
        (lambda: RMSNorm(1, 2, epsilon=-1.0), r"RMSNorm.epsilon must be above 0, got -1\.0"),
        (lambda: LayerNorm(1, 2, epsilon=0.0), r"LayerNorm.epsilon must be above 0"),
        (lambda: MlpBody(2, 1, dropout=1.0), r"MlpBody.dropout must be in \[0, 1\), got 1"),
        (lambda: MlpBody(2, 1, hidden_layers=(0,)), "widths of hidden layers"),
        (lambda: SimbaBody(2, 1, width=0), "SimbaBody.width must be 1 or more"),
        (lambda: SimbaV2Body(2, 1, width=0), "SimbaV2Body.width must be 1 or more"),
        (lambda: FlashBody(2, 1, blocks=0), "FlashBody.blocks must be 1 or more"),
    ],
)
def test_settings_out_of_range(make, told):
    with pytest.raises(TaacError, match=told):
        make()


def test_corrections_of_renormalisation_are_detached():
    norm, x = moved(Plain(N, SIZE, renorm_after=0)), drawn(N, M, SIZE).requires_grad_()
    weights = drawn(N, M, SIZE)
    mean, variance = norm.mean.clone(), norm.variance.clone()
    with batch_statistics(update=False):
        (found,) = torch.autograd.grad((norm(x) * weights).sum(), x)
    m, v = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
    std, sigma = (v + norm.epsilon).sqrt(), (variance + norm.epsilon).sqrt()
    r, d = (std / sigma).detach(), ((m - mean) / sigma).detach()
    (expected,) = torch.autograd.grad(((((x - m) / std) * r + d) * norm.scale * weights).sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5])
def test_batches_of_hardly_any_weight_leave_finite_statistics(weight):
    norm, x = moved(Plain(N, SIZE, unbiased=True)), drawn(N, M, SIZE)
    weights, before = torch.zeros(M, dtype=torch.float64), norm.mean.clone()
    weights[:2] = weight
    with batch_statistics(weights):
        assert torch.isfinite(norm(x)).all()
    assert torch.isfinite(norm.mean).all() and (norm.variance >= 0).all() and torch.isfinite(norm.variance).all()
    assert torch.equal(norm.mean, before) == (weight == 0)  # without weight they stay


def test_dropout_comes_before_normalisation():
    for norm_last in (False, True):
        kinds = [type(layer).__name__ for layer in MlpBody(3, 2, (4,), dropout=0.5, norm_last=norm_last).layers]
        assert kinds.index("Dropout") == 1


def test_simbas_and_crossqs_layers_begin_as_flax_makes_them():
    """Normals of variance 2 and 1 over inputs, which are cut at two deviations of the uncut one; biases of 0."""
    (block,) = SimbaBody(3, 2, 64, 1).blocks
    mlp = MlpBody(100, 2, (300,), norm=None, initial_weights="lecun")
    for layer, variance in (
        (block.widen, 2 / 64), (block.narrow, 2 / 256), (mlp.layers[0], 1 / 100), (mlp.head(50), 1 / 300),
    ):  # fmt: skip
        weight = layer.weight
        assert weight.std().item() == pytest.approx(math.sqrt(variance), rel=0.05) and not layer.bias.any()
        assert weight.abs().max() <= 2 * math.sqrt(variance) / 0.8796 + 1e-6
        assert (weight.abs() > 2.1 * math.sqrt(variance)).any()


def test_droqs_layers_begin_as_xavier_uniform():
    mlp = MlpBody(100, 2, (300,), initial_weights="xavier")
    for layer, both in ((mlp.layers[0], 400), (mlp.head(50), 350)):
        assert layer.weight.abs().max().item() == pytest.approx(math.sqrt(6 / both), rel=0.01) and not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / both), rel=0.05)


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda body: CriticEnsemble(SIZE, body=body, last_init_range=0.5), r"CriticEnsemble\.last_init_range has no effect"),
        (lambda body: CriticEnsemble(SIZE, body=body, activation=torch.nn.Tanh), r"CriticEnsemble\.activation has no effect"),
        (lambda body: ActorNetwork(SIZE, 2, body=body, head_bias_init_range=0.1), r"ActorNetwork\.head_bias_init_range has no"),
        (lambda body: MlpBody(SIZE, 2, unit_weights=True, initial_weights="lecun"), "which unit_weights leaves unused"),
        (lambda body: MlpBody(SIZE, 2, initial_weights="flax"), "must be 'torch', 'lecun' or 'xavier', got 'flax'"),
    ],
)
def test_settings_that_a_body_leaves_unused_are_refused(make, told):
    with pytest.raises(TaacError, match=told):
        make(LayerNormed)


def test_hidden_layers_and_head_have_weights_of_norm_1():
    body = MlpBody(3, 2, (4, 5), unit_weights=True)
    linear = [part for part in [*body.layers, body.head(2)] if isinstance(part, OrthogonalLinear)]
    assert len(linear) == 3 and len(projections(body)) == 2
    for part in linear:
        with torch.no_grad():
            for stretched in (1.0, 3.0):
                part.weight.mul_(stretched)
                part.project()
                norm = torch.linalg.vector_norm(part.weight, dim=1)
                torch.testing.assert_close(norm, torch.ones_like(norm))
