"""The report's six line colours, told apart by everyone, on both pages."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from statewell.bench.style import DARK, LIGHT

# Machado, Oliveira, Fernandes 2009, table 1, severity 1.0, on linear RGB
SEEN_WITH = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Ottosson 2020, OKLab
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
LEAST_DISTANCE, LEAST_CONTRAST = 0.08, 3.0


def linear(colour: str) -> np.ndarray:
    """#rrggbb as linear RGB."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def colours(sheet: str) -> tuple[str, list[str]]:
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", sheet))
    return found["page"], [found[f"line-{index}"] for index in range(6)]


@pytest.mark.parametrize("sight", SEEN_WITH)
@pytest.mark.parametrize("sheet", [LIGHT, DARK], ids=["light", "dark"])
def test_the_six_line_colours_are_told_apart_with_any_cones(sheet, sight):
    _, lines = colours(sheet)
    seen = [np.clip(SEEN_WITH[sight] @ linear(line), 0, 1) for line in lines]
    lab = [TO_LAB @ np.cbrt(TO_CONES @ rgb) for rgb in seen]
    distances = {(i, j): float(np.linalg.norm(lab[i] - lab[j])) for i, j in combinations(range(6), 2)}
    assert min(distances.values()) >= LEAST_DISTANCE, distances


@pytest.mark.parametrize("sheet", [LIGHT, DARK], ids=["light", "dark"])
def test_every_line_stands_out_from_the_page(sheet):
    page, lines = colours(sheet)
    weights = np.array([0.2126, 0.7152, 0.0722])  # WCAG relative luminance
    for line in lines:
        low, high = sorted((float(weights @ linear(page)), float(weights @ linear(line))))
        assert (high + 0.05) / (low + 0.05) >= LEAST_CONTRAST
