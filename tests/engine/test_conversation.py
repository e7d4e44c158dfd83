"""A conversation: its memory goes from turn to turn, into files and into forks, and never changes what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import statewell as sw
from statewell.architectures import ARCHITECTURES
from statewell.config.engine import EngineConfig
from statewell.engine.conversation import ChatSettings, Conversation, Turn
from statewell.engine.kinds import by_kind
from statewell.engine.request import Request
from statewell.engine.sampling import Sampling
from statewell.errors import CheckpointError, LimitError, RequestError
from statewell.memory.snapshot import load_snapshot, save_snapshot
from tests.engine.alone import alone

every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)
GREEDY = ChatSettings(sampling=Sampling(temperature=0), max_tokens=12)


def conversation(arch: str, settings: ChatSettings = GREEDY, seed: int = 3) -> Conversation:
    """Random weights say bytes that are often no text, which a conversation has to carry on with as well."""
    return Conversation(sw.build(f"{arch}:nano", seed=seed).double(), settings)


def ask(talking: Conversation, text: str) -> Turn:
    *_, turn = talking.ask(text)
    assert isinstance(turn, Turn)
    return turn


@every_architecture
def test_a_turn_reads_nothing_again_and_says_what_a_cold_run_says(arch: str):
    talking = conversation(arch)
    ask(talking, "What is a state?")
    first = talking.talk.ids
    turn = ask(talking, "And a page?")
    prompt = talking.talk.ids[: turn.usage.prompt]
    assert prompt[: len(first)] == first
    assert turn.usage.reuse.tokens == len(first) - 1  # all that was taken in: all but the last one said
    request = Request(prompt=prompt, max_tokens=12, sampling=Sampling(temperature=0))
    assert list(talking.talk.ids[len(prompt) :]) == alone(talking.engine.model, request)


@every_architecture
def test_a_saved_conversation_goes_on_elsewhere_as_it_would_have_here(arch: str, tmp_path: Path):
    talking, other = conversation(arch), conversation(arch)
    ask(talking, "One.")
    assert talking.save(tmp_path / "new" / "one.safetensors") == len(talking.talk.ids) - 1
    assert other.load(tmp_path / "new" / "one.safetensors") == len(talking.talk.ids) - 1
    turns = [ask(each, "Two.") for each in (talking, other)]
    assert talking.talk == other.talk
    assert turns[0].usage == turns[1].usage
    assert turns[1].usage.reuse.tokens > 0


@pytest.mark.parametrize("arch", ["gpt2", "kimi_k3"])
def test_a_shorter_fork_is_saved_without_what_the_longer_one_went_on_with(arch: str, tmp_path: Path):
    talking = conversation(arch)
    ask(talking, "One.")
    fork = talking.talk
    ask(talking, "Two.")
    talking.talk = fork
    length = talking.save(tmp_path / "fork.safetensors")
    assert length == len(fork.ids) - (
        arch != "gpt2"
    )  # the longer one read the last token, which no state can give back
    saved = load_snapshot(tmp_path / "fork.safetensors", talking.fingerprint).snapshot
    memory = talking.engine.model.new_memory(rows=1)
    memory.restore(saved)
    assert memory.lengths.tolist() == [length]


def test_a_file_of_another_model_or_without_a_conversation_is_refused_and_nothing_changes(tmp_path: Path):
    talking, other = conversation("kimi_linear"), conversation("kimi_linear", seed=4)
    ask(talking, "One.")
    talking.save(tmp_path / "one.safetensors")
    before, bytes_before = other.talk, other.engine.memory.bytes()
    with pytest.raises(CheckpointError, match="taken from another model"):
        other.load(tmp_path / "one.safetensors")
    snapshot = load_snapshot(tmp_path / "one.safetensors", talking.fingerprint).snapshot
    for notes, said in [
        ({}, "names 0 tokens"),
        ({"ids": "[1, 2]"}, "names 2 tokens and holds"),
        ({"ids": "[1, 999]"}, "should be token ids"),
        ({"ids": str(list(range(snapshot.lengths[0]))), "messages": "null"}, "holds no conversation"),
        ({"ids": str(list(range(snapshot.lengths[0]))), "messages": '[{"role": "dog"}]'}, "messages that are none"),
    ]:
        save_snapshot(tmp_path / "odd.safetensors", snapshot, other.fingerprint, notes)
        with pytest.raises(CheckpointError, match=said):
            other.load(tmp_path / "odd.safetensors")
    assert other.talk == before
    assert other.engine.memory.bytes() == bytes_before


def test_what_cannot_be_written_is_said_and_leaves_no_file(tmp_path: Path):
    talking = conversation("deltanet")
    with pytest.raises(RequestError, match="nothing was said yet"):
        talking.save(tmp_path / "one.safetensors")
    ask(talking, "One.")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        talking.save(tmp_path / "file" / "one.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_answer_stays_as_far_as_it_was_said():
    talking = conversation("gated_deltanet")
    for count, piece in enumerate(talking.ask("One.")):
        if count == 3:
            talking.interrupt()
        if isinstance(piece, Turn):
            assert piece.finish == "interrupted"
            assert 0 < piece.usage.generated < 12
    assert talking.engine.memory.rows_in_use == 0
    assert ask(talking, "Two.").usage.reuse.tokens > 0


def test_an_answer_that_nobody_reads_to_its_end_was_never_said():
    talking = conversation("kimi_k3")
    answer = talking.ask("One.")
    next(answer)
    answer.close()
    assert talking.talk.messages == ()
    assert talking.engine.memory.rows_in_use == 0
    assert not talking.engine.gauges().running


def test_a_conversation_past_the_models_limit_is_refused_and_stays_as_it_was():
    talking = conversation("gpt2")
    ask(talking, "One.")
    before = talking.talk
    limit = talking.engine.model.config.context
    with pytest.raises(LimitError, match="shorten it"):
        talking.ask("x" * limit)
    assert talking.talk == before


@every_architecture
def test_the_bytes_of_each_kind_of_layer_add_up_to_the_gauges(arch: str):
    talking = conversation(arch)
    ask(talking, "One.")
    for piece in talking.ask("Two, while it speaks."):
        kinds, gauges = by_kind(talking.engine), talking.engine.gauges()
        for part in ("slots", "pages", "held"):
            assert sum(getattr(kind.used, part) for kind in kinds) == gauges.used[part]
            assert sum(getattr(kind.reserved, part) for kind in kinds) == gauges.reserved[part]
        assert sum(kind.layers for kind in kinds) == len(talking.engine.model.layers)
        assert piece is not None


def test_memory_that_was_let_go_is_read_again_and_says_so():
    room = conversation("kimi_linear").engine.budget
    tight = room.slots + 3 * room.spec.fixed_bytes + 256 * room.spec.bytes_per_token
    settings = ChatSettings(
        sampling=Sampling(temperature=0), max_tokens=4, engine=EngineConfig(rows=1, memory_budget=tight)
    )
    talking = conversation("kimi_linear", settings)
    ask(talking, "One.")
    fork = talking.talk
    talking.restart()
    ask(talking, "x" * 150)
    ask(talking, "y")
    talking.talk = fork
    assert ask(talking, "Two.").usage.reuse.missed == "evicted"
    assert talking.engine.memory.bytes().reserved <= tight
