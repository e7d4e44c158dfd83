"""Fair comparisons: the presets agree as they are, and total parameters agree when asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statewell import architectures
from statewell.bench.match import choose, match_total, require_agreement
from statewell.config.layers import LayerSpec, MLPSpec
from statewell.errors import ConfigError, RequestError
from statewell.plan import weights


@pytest.mark.parametrize("size", architectures.SIZES)
def test_the_presets_of_one_size_agree_on_compared_parameters_as_they_are(size):
    matched = choose((), size, "active")
    counts = [weights.compared(config) for config in matched.configs]
    assert max(counts) <= 1.03 * min(counts)
    assert matched.configs == tuple(architectures.preset(arch, size) for arch in architectures.ARCHITECTURES)
    assert matched.changes == ()


@pytest.mark.parametrize("size", architectures.SIZES)
def test_matching_totals_changes_ffn_widths_and_nothing_else(size):
    matched = choose((), size, "total")
    totals = [weights.total(config) for config in matched.configs]
    assert max(totals) <= 1.03 * min(totals)
    for before, after in zip(choose((), size, "active").configs, matched.configs, strict=True):
        assert [layer.mixer for layer in before.layers] == [layer.mixer for layer in after.layers]
        assert replace(before, layers=after.layers) == after
        for old, new in zip(before.layers, after.layers, strict=True):
            same = {"width": old.ffn.width}
            if not isinstance(old.ffn, MLPSpec):
                same["shared_width"] = old.ffn.shared_width
            assert replace(new.ffn, **same) == old.ffn


def test_every_change_of_a_width_is_named():
    matched = choose((), "nano", "total")
    changed = [c for c in matched.configs if c != architectures.preset(c.architecture, "nano")]
    assert len(matched.changes) == len(changed) > 0
    kimi = next(sentence for sentence in matched.changes if sentence.startswith("Kimi Linear"))
    config = next(config for config in matched.configs if config.architecture == "kimi_linear")
    assert f"{weights.total(config):,} parameters" in kimi
    assert all(str(layer.ffn.width) in kimi for layer in config.layers)


def test_models_that_differ_by_more_than_three_per_cent_are_refused():
    gpt2, linear = choose(["gpt2", "linear_attention"], "nano", "active").configs
    first = linear.layers[0]
    wide = replace(
        linear,
        layers=(
            LayerSpec(mixer=first.mixer, ffn=replace(first.ffn, width=first.ffn.width * 2)),
            *linear.layers[1:],
        ),
    )
    with pytest.raises(ConfigError, match=r"linear_attention:nano has [\d,]+ active parameters .* apart"):
        require_agreement([gpt2, wide], weights.compared, "active parameters")


def test_a_total_that_ffn_widths_cannot_reach_is_refused():
    gpt2, other = choose(["gpt2", "kimi_k3"], "nano", "active").configs
    tiny = replace(gpt2, width=8, positions=8, context=8)
    with pytest.raises(ConfigError, match="total parameters"):
        match_total([tiny, other])


def test_the_order_asked_for_does_not_matter_and_a_name_given_twice_counts_once():
    matched = choose(["kimi-k3", "gpt2", "kimi_k3"], "nano", "active")
    assert [config.architecture for config in matched.configs] == ["gpt2", "kimi_k3"]


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(RequestError, match="did you mean 'deltanet'"):
        choose(["deltanett"], "nano", "active")
    with pytest.raises(RequestError, match="did you mean 'total'"):
        choose([], "nano", "totals")
    with pytest.raises(RequestError, match="did you mean 'nano'"):
        choose([], "nanoo", "active")
