"""What no operation may do on odd input: hang, crash, or hide a number that is none."""

import pytest
import torch

from statewell.kernels import ops, registry

BACKENDS = ("cpu", "reference") if registry.instruction_sets() else ("reference",)


@pytest.fixture(params=BACKENDS)
def _backend(request):
    """Each backend that computes on this processor in turn; `reference` where it lacks the operation."""
    if request.param == "reference":
        with registry.use("reference"):
            yield
    else:
        yield


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def recurrent(B=2, T=5, H=2, HV=4, K=8, V=6):
    return {
        "q": noise(B, T, H, K),
        "k": noise(B, T, H, K, seed=1) / 4,
        "v": noise(B, T, HV, V, seed=2),
        "beta": noise(B, T, HV, seed=3).sigmoid(),
    }


def calls(B, T):
    """Every operation on rows of tokens, with its tensors by name."""
    mix = recurrent(B, T)
    linear = {name: mix[name] for name in "qkv"}
    x, q, latent = noise(B, T, 8), noise(B, T, 3, 10), {"latent": noise(B, T, 7), "rope": noise(B, T, 4)}
    latent["up"] = noise(3, 11, 7)
    return {
        "linear": linear,
        "delta": mix,
        "gated_delta": {**mix, "g": -noise(B, T, 4).abs()},
        "kda": {**mix, "g": -noise(B, T, 4, 8).abs()},
        "attention": {"q": noise(B, T, 4, 8), "k": noise(B, T, 2, 8), "v": noise(B, T, 2, 6)},
        "mla": {"q": q, **latent},
        "mla_absorbed": {"q": q, **latent},
        "short_conv": {"x": x, "weight": noise(8, 4)},
        "swiglu": {"gate": x, "up": noise(B, T, 8)},
        "situ": {"gate": x, "up": noise(B, T, 8)},
        "route": {"x": x, "weight": noise(6, 8), "bias": noise(6), "top_k": 2},
        "l2norm": {"x": x},
        "rms_norm": {"x": x, "weight": noise(8), "eps": 1e-5},
        "gated_rms_norm": {"x": x, "weight": noise(8), "gate": x, "eps": 1e-5, "activation": torch.sigmoid},
        "decay_gate": {"z": noise(B, T, 4, 8), "A_log": noise(4), "dt_bias": noise(4, 8)},
        "bounded_gate": {"z": noise(B, T, 4, 8), "A_log": noise(4), "dt_bias": noise(4, 8), "lower_bound": -5.0},
    }


def first(result):
    return result[0] if isinstance(result, tuple) else result


NAMES = list(calls(1, 1))


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize(("B", "T"), [(0, 5), (2, 0), (0, 0)], ids=["no rows", "no tokens", "neither"])
@pytest.mark.parametrize("name", NAMES)
def test_no_rows_and_no_tokens_give_an_empty_result(name, B, T):
    assert first(getattr(ops, name)(**calls(B, T)[name])).shape[:2] == (B, T)


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "route"])
def test_a_nan_comes_through_and_an_infinity_ends_without_touching_other_rows(name, T, value):
    clean = first(getattr(ops, name)(**calls(2, T)[name]))
    for which, tensor in calls(2, T)[name].items():
        if not isinstance(tensor, torch.Tensor) or tensor.shape[:2] != (2, T):
            continue  # a weight, which all rows share
        given = calls(2, T)[name]
        given[which][1, 0] = value
        result = first(getattr(ops, name)(**given))
        assert torch.equal(result[0], clean[0]), which
        if value != value:
            assert result[1, 0].isnan().any(), which


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_router_without_finite_scores_still_names_experts_that_exist(value):
    given = calls(2, 5)["route"]
    clean, _ = ops.route(**given)
    given["x"][1] = value
    index, weight = ops.route(**given)
    assert index.min() >= 0
    assert index.max() < 6
    assert torch.equal(index[0], clean[0])
    if value != value:
        assert weight[1].isnan().all()


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("name", NAMES)
def test_strided_and_expanded_tensors_give_what_copies_give(name):
    given = calls(2, 5)[name]
    strided = {
        which: x.mT.contiguous().mT if isinstance(x, torch.Tensor) and x.dim() > 1 else x for which, x in given.items()
    }
    assert_same(ops, name, strided, given)
    same = {which: x[:1].expand(x.shape) if isinstance(x, torch.Tensor) else x for which, x in given.items()}
    copied = {which: x.clone() if isinstance(x, torch.Tensor) else x for which, x in same.items()}
    assert_same(ops, name, same, copied)


def assert_same(ops, name, given, expected):
    torch.testing.assert_close(
        first(getattr(ops, name)(**given)), first(getattr(ops, name)(**expected)), rtol=1e-5, atol=1e-5
    )
