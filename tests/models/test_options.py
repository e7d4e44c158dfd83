"""What a mixer or network can be besides its default: each option against its formula, refused where it cannot be."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from statewell.architectures import preset
from statewell.config.layers import (
    AttnResSpec,
    LatentMoESpec,
    LayerSpec,
    MLPSpec,
    MoESpec,
    OffsetRMSNormSpec,
    PlainStreamSpec,
    SwiGLU,
)
from statewell.config.load import model_from_json, model_to_json
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, RotaryAttentionSpec
from statewell.errors import ConfigError
from statewell.memory.segments import Segments
from statewell.memory.store import NothingKept
from statewell.models import build
from statewell.models.feature_maps import feature_map
from statewell.models.rotary import rotate
from statewell.plan.flops import flops_per_token
from statewell.plan.weights import weights
from tests.laws.mixers import SPECS, WIDTH, noise, small_mixer
from tests.tolerances import assert_close

MOE = {"experts": 8, "top_k": 3, "width": 6, "shared_width": 10, "activation": SwiGLU()}
FFNS = {
    "grouped": MoESpec(**MOE, groups=4, top_groups=2, scaling=2.5),
    "softmax": MoESpec(**MOE, scores="softmax", shared_gate=True),
    "grouped_latent": LatentMoESpec(**MOE, latent=8, groups=2, top_groups=1),
}


def model_of(mixer=None, network=None, **changes):
    """Three layers of it, in a stream whose every sublayer is a source."""
    layer = LayerSpec(mixer=mixer or SPECS["delta"], ffn=network or MLPSpec(width=8, activation=SwiGLU()))
    return dataclasses.replace(
        preset("kimi_k3", "nano"), width=WIDTH, layers=(layer,) * 3, norm=OffsetRMSNormSpec(), **changes
    )


OPTIONS = {
    **{name: model_of(spec) for name, spec in SPECS.items()},
    **{n: model_of(network=s) for n, s in FFNS.items()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_planned_weights_are_the_models_tensors_and_its_config_survives_json(name):
    config = OPTIONS[name]
    model = build(config)
    assert {w.name: w.shape for w in weights(config)} == {n: tuple(t.shape) for n, t in model.state_dict().items()}
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    assert model_from_json(model_to_json(config)) == config
    assert flops_per_token(config, 100) > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_every_weight_of_every_option_is_trained_and_recomputing_changes_nothing(name):
    config = dataclasses.replace(OPTIONS[name], stream=PlainStreamSpec(), init_std=0.3)
    gradients = []
    for recompute in (False, True):
        model = build(config, recompute=recompute).double()
        model(torch.arange(60).view(2, 30)).square().sum().backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    plain, recomputed = gradients
    for key, gradient in plain.items():
        assert torch.isfinite(gradient).all(), key
        assert gradient.abs().sum() > 0, key
        assert torch.equal(gradient, recomputed[key]), key


def alone(name: str, x: torch.Tensor) -> torch.Tensor:
    mixer = small_mixer(name)
    return mixer(x, mixer.new_memory(NothingKept()), Segments.equal(1, x.shape[1]))


def by_token(q, k, v, beta):
    """The delta rule's definition: q, k [T, H, K], v [T, H, V], beta [T, H]."""
    state, outputs = torch.zeros(q.shape[1], q.shape[2], v.shape[2], dtype=q.dtype), []
    for t in range(len(q)):
        retrieved = torch.einsum("hk,hkv->hv", k[t], state)
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - retrieved))[:, None]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) * q.shape[2] ** -0.5)
    return torch.stack(outputs)


@torch.no_grad()
def test_delta_without_convolution_and_strength_is_silu_of_the_projections_written_in_full():
    mixer, x = small_mixer("delta_no_conv"), noise(1, 9, WIDTH)
    q, k, v = (F.silu(p(x))[0].unflatten(-1, (3, -1)) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    o = by_token(q, k, v, torch.ones(9, 3, dtype=torch.float64))
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.o_norm.weight
    assert_close(alone("delta_no_conv", x), mixer.o_proj(o.flatten(-2))[None], "memory")


@torch.no_grad()
def test_delta_with_bias_gate_and_negative_eigenvalues_equals_its_formula():
    mixer, x = small_mixer("delta_gate_neg"), noise(1, 9, WIDTH)
    for conv in (mixer.q_conv, mixer.k_conv, mixer.v_conv):
        conv.bias.copy_(noise(*conv.bias.shape, seed=4))
    made = []
    for projection, conv in ((mixer.q_proj, mixer.q_conv), (mixer.k_proj, mixer.k_conv), (mixer.v_proj, mixer.v_conv)):
        raw = F.pad(projection(x)[0], (0, 0, 1, 0))  # two taps: one token before
        y = raw[:-1] * conv.weight[:, 0] + raw[1:] * conv.weight[:, 1] + conv.bias
        made.append(F.silu(y).unflatten(-1, (3, -1)))
    q, k, v = made
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    o = by_token(q, k, v, 2 * mixer.b_proj(x)[0].sigmoid())
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.o_norm.weight
    o = o * F.silu(mixer.g_proj(x)[0].unflatten(-1, (3, -1)))
    got = mixer(x, mixer.new_memory(NothingKept()), Segments.equal(1, 9))
    assert_close(got, mixer.o_proj(o.flatten(-2))[None], "memory")


@torch.no_grad()
def test_each_feature_map_equals_its_formula():
    x = noise(5, 3, 4)
    assert_close(feature_map("elu", 4)(x), torch.where(x > 0, x + 1, x.exp()), "operation")
    assert torch.equal(feature_map("relu", 4)(x), x.clamp(min=0))
    assert torch.equal(feature_map("identity", 4)(x), x)
    maps = {name: feature_map(name, 4).double() for name in ("elementwise_product", "t2r", "hedgehog")}
    for made in maps.values():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(noise(*parameter.shape, seed=index))
    product, t2r, hedgehog = maps.values()
    one, two = product.layer1, product.layer2
    assert_close(product(x), (x @ one.weight.T + one.bias) * (x @ two.weight.T + two.bias), "operation")
    assert_close(t2r(x), (x @ t2r.layer.weight.T).clamp(min=0), "operation")
    assert t2r.layer.bias is None
    y = 2 * (x @ hedgehog.layer.weight.T + hedgehog.layer.bias)
    weight = torch.cat((y.exp(), (-y).exp()), dim=-1)
    assert_close(hedgehog(x), weight / weight.sum(-1, keepdim=True), "operation")
    both = torch.cat((x.clamp(min=0), (-x).clamp(min=0)), dim=-1)
    rolled = [both[..., [(i - shift) % 8 for i in range(8)]] * both for shift in (1, 2, 3, 4)]
    assert_close(feature_map("dpfp", 4)(x), torch.cat(rolled, dim=-1), "operation")


@torch.no_grad()
def test_linear_attention_without_a_normaliser_reads_the_plain_sum():
    mixer, x = small_mixer("linear_default_of_fla"), noise(1, 7, WIDTH)
    q = mixer.q_map(mixer.q_proj(x).unflatten(-1, (3, -1)))[0]
    k = mixer.k_map(mixer.k_proj(x).unflatten(-1, (3, -1)))[0]
    v = mixer.v_proj(x).unflatten(-1, (3, -1))[0]
    scores = torch.einsum("thk,shk->hts", q, k).tril() * 8**-0.5
    o = mixer.o_norm(torch.einsum("hts,shv->thv", scores, v))
    assert_close(alone("linear_default_of_fla", x), mixer.o_proj(o.flatten(-2))[None], "memory")


@torch.no_grad()
def test_grouped_linear_attention_shares_each_key_head_among_neighbours():
    mixer, x = small_mixer("linear_tied"), noise(1, 7, WIDTH)
    q = (mixer.q_proj(x)[0].unflatten(-1, (4, 8)) @ mixer.q_map.layer.weight.T).relu()
    k = (mixer.k_proj(x)[0].unflatten(-1, (2, 8)) @ mixer.q_map.layer.weight.T).relu()
    v = mixer.v_proj(x)[0].unflatten(-1, (2, 6))
    heads = [0, 0, 1, 1]
    scores = torch.einsum("thk,shk->hts", q, k[:, heads]).tril()
    o = torch.einsum("hts,shv->thv", scores, v[:, heads]) / (scores.sum(-1).T[..., None] + 1e-10 * 8**0.5)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(alone("linear_tied", x), mixer.o_proj(o.flatten(-2))[None], "memory")


@torch.no_grad()
def test_features_are_divided_by_their_sum_on_request():
    mixer, x = small_mixer("linear_relu"), noise(1, 7, WIDTH)
    q, k = (p(x)[0].unflatten(-1, (3, 8)).relu() for p in (mixer.q_proj, mixer.k_proj))
    q, k = (y / (y.sum(-1, keepdim=True) + 1e-4) for y in (q, k))
    v = mixer.v_proj(x)[0].unflatten(-1, (3, 6))
    scores = torch.einsum("thk,shk->hts", q, k).tril()
    o = torch.einsum("hts,shv->thv", scores, v) / (scores.sum(-1).T[..., None] + 1e-10 * 8**0.5)
    assert_close(alone("linear_relu", x), mixer.o_proj(mixer.o_norm(o).flatten(-2))[None], "memory")


@pytest.mark.parametrize(("name", "activate"), [("delta_elu_sum", F.elu), ("delta_relu", F.relu)])
@torch.no_grad()
def test_delta_activates_and_norms_queries_and_keys_as_chosen(name, activate):
    mixer, x = small_mixer(name), noise(1, 9, WIDTH)
    made = []
    for projection, conv in ((mixer.q_proj, mixer.q_conv), (mixer.k_proj, mixer.k_conv), (mixer.v_proj, mixer.v_conv)):
        taps = conv.weight.shape[1]
        raw = F.pad(projection(x)[0], (0, 0, taps - 1, 0))
        y = sum(raw[tap : tap + 9] * conv.weight[:, tap] for tap in range(taps))
        made.append(y.unflatten(-1, (3, -1)))
    q, k = (activate(y) + (1 if activate is F.elu else 0) for y in made[:2])
    if activate is F.elu:
        q, k = (y / y.sum(-1, keepdim=True) for y in (q, k))
    else:
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    o = by_token(q, k, F.silu(made[2]), mixer.b_proj(x)[0].sigmoid())
    assert_close(alone(name, x), mixer.o_proj(mixer.o_norm(o).flatten(-2))[None], "memory")


@torch.no_grad()
def test_kda_of_fla_has_a_state_a_gate_and_a_strength_to_2_for_each_value_head():
    mixer, x = small_mixer("kda_of_fla"), noise(1, 9, WIDTH)
    mixer.g_b_proj.bias.copy_(noise(24, seed=7))
    made = []
    for projection, conv in ((mixer.q_proj, mixer.q_conv), (mixer.k_proj, mixer.k_conv), (mixer.v_proj, mixer.v_conv)):
        raw = F.pad(projection(x)[0], (0, 0, 3, 0))
        made.append(F.silu(sum(raw[tap : tap + 9] * conv.weight[:, tap] for tap in range(4)) + conv.bias))
    q, k = (y.unflatten(-1, (2, 8)) for y in made[:2])
    q, k = ((y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt())[:, [0, 0, 1, 1]] for y in (q, k))
    v, beta = made[2].unflatten(-1, (4, 6)), 2 * mixer.b_proj(x)[0].sigmoid()
    z = mixer.f_b_proj(mixer.f_a_proj(x))[0].unflatten(-1, (4, 8))
    g = -mixer.A_log.exp()[:, None] * F.softplus(z + mixer.dt_bias.view(4, 8))
    state, outputs = torch.zeros(4, 8, 6, dtype=torch.float64), []
    for t in range(9):
        state = state * g[t].exp()[..., None]
        retrieved = torch.einsum("hk,hkv->hv", k[t], state)
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - retrieved))[:, None]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) * 8**-0.5)
    gate = (mixer.g_a_proj(x) @ mixer.g_b_proj.weight.T + mixer.g_b_proj.bias)[0].unflatten(-1, (4, 6)).sigmoid()
    o = mixer.o_norm(torch.stack(outputs)) * gate
    got = mixer(x, mixer.new_memory(NothingKept()), Segments.equal(1, 9))
    assert_close(got, mixer.o_proj(o.flatten(-2))[None], "memory")


def test_a_rotation_turns_pairs_by_the_place_and_leaves_the_rest():
    x, places = noise(1, 3, 2, 6), torch.tensor([0, 5, 1000])
    turned = rotate(x, places, rotary_dim=4, theta=100.0)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    pairs = torch.complex(x[..., :2], x[..., 2:4])
    angle = places[:, None, None].double() * torch.tensor([1.0, 0.1], dtype=torch.float64)
    expected = pairs * torch.polar(torch.ones_like(angle), angle)
    assert_close(turned[..., :2], expected.real, "operation")
    assert_close(turned[..., 2:4], expected.imag, "operation")


@torch.no_grad()
def test_rotary_attention_sees_distances_not_places():
    mixer, x = small_mixer("rotary_qwen3_next"), noise(1, 6, WIDTH)
    here = mixer(x, mixer.new_memory(NothingKept()), Segments((0, 6), None, (0,)))
    there = mixer.q_norm(mixer.q_proj(x).unflatten(-1, (4, 6))), mixer.k_norm(mixer.k_proj(x).unflatten(-1, (2, 6)))
    q, k = (rotate(y, torch.arange(50, 56), 2, 1e7) for y in there)
    v, gate = mixer.v_proj(x).unflatten(-1, (2, 6)), mixer.g_proj(x).sigmoid()
    k, v = (y.repeat_interleave(2, dim=2) for y in (k, v))
    scores = (torch.einsum("bthk,bshk->bhts", q, k) * 6**-0.5).masked_fill(
        torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf")
    )
    o = torch.einsum("bhts,bshk->bthk", scores.softmax(-1), v).flatten(-2)
    assert_close(here, mixer.o_proj(o * gate), "memory")


@torch.no_grad()
def test_a_shared_experts_gate_scales_what_it_gives():
    network = build(OPTIONS["softmax"], seed=2).double().blocks[0].ffn
    x = noise(1, 5, WIDTH)
    index, weight = network.router(x)
    assert_close(weight.sum(-1), torch.ones(1, 5, dtype=torch.float64), "operation")
    gated = network.shared(x) * (x @ network.shared_gate.weight.T).sigmoid()
    assert_close(network(x), network.experts(x, index, weight) + gated, "operation")


@pytest.mark.parametrize("group", [1, 2, 3, 4])
@torch.no_grad()
def test_groups_of_sublayers_close_where_they_begin(group):
    model = build(model_of(stream=AttnResSpec(group=group, unit="sublayers"))).double()
    sizes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, stream: sizes.append(len(stream.summaries)))
    model(torch.arange(5)[None])
    assert sizes == [sum(sublayer % group == 0 for sublayer in range(2 * index + 2)) for index in range(3)]


@torch.no_grad()
def test_full_residuals_mix_every_earlier_sublayers_output():
    model = build(model_of(stream=AttnResSpec(group=1, unit="sublayers"), init_std=0.3)).double()
    for name, parameter in model.named_parameters():
        if name.endswith("query"):
            parameter.copy_(noise(*parameter.shape))
    text, segments = torch.arange(9)[None], Segments.equal(1, 9)
    sources = [model.embedding(text, torch.float64)]

    def mixed(site):
        if len(sources) == 1:
            return sources[0]
        normed = [x / (x.square().mean(-1, keepdim=True) + site.eps).sqrt() * site.norm_weight for x in sources]
        weight = torch.stack([x @ site.query for x in normed]).softmax(0)
        return (weight[..., None] * torch.stack(sources)).sum(0)

    for block in model.blocks:
        read = block.mixer_norm(mixed(block.mixer_site))
        sources.append(block.mixer(read, block.mixer.new_memory(NothingKept()), segments))
        sources.append(block.ffn(block.ffn_norm(mixed(block.ffn_site))))
    assert_close(model(text), model.logits(model.norm(mixed(model.output_site))), "model")


@torch.no_grad()
def test_groups_of_two_sublayers_a_layer_are_groups_of_layers():
    layers, sublayers = AttnResSpec(group=2), AttnResSpec(group=4, unit="sublayers")
    ids = torch.arange(9)[None]
    assert torch.equal(*(build(model_of(stream=stream, init_std=0.3))(ids) for stream in (layers, sublayers)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: LinearSpec(heads=2, key_dim=4, value_dim=4, feature_map="cosine"),
            "LinearSpec.feature_map is 'cosine'",
        ),
        (lambda: LinearSpec(heads=2, key_dim=4, value_dim=4, tied_maps=True), "tied_maps"),
        (lambda: LinearSpec(heads=3, key_dim=4, value_dim=4, kv_heads=2), "multiple of kv_heads, 2"),
        (lambda: DeltaSpec(heads=2, key_dim=4, value_dim=4, conv=None, conv_bias=True), "DeltaSpec.conv_bias"),
        (lambda: DeltaSpec(heads=2, key_dim=4, value_dim=4, conv=0), "DeltaSpec.conv is 0"),
        (lambda: DeltaSpec(heads=2, key_dim=4, value_dim=4, qk_activation="tanh"), "qk_activation is 'tanh'"),
        (lambda: DeltaSpec(heads=2, key_dim=4, value_dim=4, gate="yes"), "DeltaSpec.gate is 'yes'"),
        (lambda: GatedDeltaSpec(heads=2, value_heads=2, key_dim=4, value_dim=4, neg_eigval=1), "neg_eigval is 1"),
        (lambda: KDASpec(heads=2, key_dim=4, value_dim=4, value_heads=3), "multiple of heads, 2"),
        (lambda: KDASpec(heads=2, key_dim=4, value_dim=4, output_gate="full", gate_bias=True), "gate_bias"),
        (lambda: RotaryAttentionSpec(heads=2, kv_heads=2, head_dim=4, rotary_dim=3), "even"),
        (lambda: RotaryAttentionSpec(heads=2, kv_heads=2, head_dim=4, rotary_dim=6), "at most head_dim, 4"),
        (lambda: RotaryAttentionSpec(heads=2, kv_heads=2, head_dim=4, rotary_dim=4, theta=0), "theta"),
        (lambda: MoESpec(**MOE, groups=3), "multiple of groups, 3"),
        (lambda: MoESpec(**MOE, groups=8), "best two"),
        (lambda: MoESpec(**MOE, groups=4, top_groups=1), "not that many"),
        (lambda: MoESpec(**MOE, groups=2, scores="softmax"), "softmax"),
        (lambda: AttnResSpec(group=2, unit="halves"), "unit is 'halves'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)
