"""An engine's memory by what its layers are: bytes of each kind of mixer, which add up to the gauges."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.engine.engine import Engine
from statewell.memory.paged import PagedBytes


@dataclass(frozen=True, kw_only=True)
class KindBytes:
    """Of all layers whose mixer is of one kind. used, reserved: as the gauges', by what they are for."""

    mixer: str
    layers: int
    used: PagedBytes
    reserved: PagedBytes

    def plus(self, other: KindBytes) -> KindBytes:
        """Both together, under this one's name."""
        return KindBytes(
            mixer=self.mixer,
            layers=self.layers + other.layers,
            used=_sum(self.used, other.used),
            reserved=_sum(self.reserved, other.reserved),
        )


def by_kind(engine: Engine) -> list[KindBytes]:
    """Every kind of mixer the model has, in the order of its layers; the sums are the engine's gauges, to the byte."""
    kinds: dict[str, KindBytes] = {}
    for layer, (used, reserved) in zip(engine.model.config.layers, engine.memory.by_layer(), strict=True):
        label = layer.mixer.label
        own = KindBytes(mixer=label, layers=1, used=used, reserved=reserved)
        kinds[label] = kinds[label].plus(own) if label in kinds else own
    return list(kinds.values())


def _sum(one: PagedBytes, other: PagedBytes) -> PagedBytes:
    return PagedBytes(slots=one.slots + other.slots, pages=one.pages + other.pages, held=one.held + other.held)
