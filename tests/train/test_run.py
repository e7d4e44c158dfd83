import dataclasses
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from statewell.architectures import ARCHITECTURES, preset
from statewell.checkpoints.native import load_model
from statewell.config.run import TrainConfig
from statewell.engine.generate import generate
from statewell.errors import BusyError, CheckpointError, DataError, RequestError, TrainingError
from statewell.text import load_tokenizer
from statewell.train import loop, run
from statewell.train.events import CheckpointEvent, EvalEvent, NoticeEvent, StepEvent
from statewell.train.folder import read_request
from statewell.train.lock import run_lock
from statewell.train.metrics import read_metrics
from statewell.train.run import train
from tests.text.vocabularies import FORMATS
from tests.train.conftest import write_text

# Trains in a process of its own that stands still at step 7, to be killed there without a chance to save.
KILLED_CHILD = """
import sys, torch
from pathlib import Path
from statewell.train.events import StepEvent
from statewell.train.run import train
from tests.train.test_run import killed_run

torch.set_num_threads(int(sys.argv[4]))

def hold(event):
    if isinstance(event, StepEvent) and event.step == 7:
        print("at step 7", flush=True)
        sys.stdin.read()

model, config = killed_run(sys.argv[1])
train(model, config, Path(sys.argv[2]), (Path(sys.argv[3]),), on_event=hold)
"""


def killed_run(arch):
    config = TrainConfig(rows=2, length=48, steps=12, eval_every=4, eval_tokens=192, checkpoint_every=3, seed=3)
    return preset(arch, "nano"), config


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line["event"] == "step"]


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_run_learns_saves_and_reports(tmp_path, text, small_model):
    config = TrainConfig(rows=4, length=64, steps=60, eval_every=20, eval_tokens=1024, checkpoint_every=25)
    events = []
    result = train(small_model, config, tmp_path / "run", (text,), on_event=events.append)

    steps = [event for event in events if isinstance(event, StepEvent)]
    assert [event.step for event in steps] == list(range(1, 61))
    assert steps[-1].tokens == result.tokens == 60 * 4 * 64
    assert steps[-1].share == 1.0
    assert steps[-1].seconds_left == 0
    assert all(event.tokens_per_s > 0 for event in steps)
    assert [event.step for event in events if isinstance(event, EvalEvent)] == [20, 40, 60]
    assert [event.step for event in events if isinstance(event, CheckpointEvent)] == [0, 25, 50, 60]
    assert any(isinstance(event, NoticeEvent) and "30 files" in event.message for event in events)

    assert result.finished
    assert result.train_loss == steps[-1].loss < steps[0].loss - 1
    assert result.val_bits_per_byte < 6
    assert result.parameters == sum(p.numel() for p in load_model(tmp_path / "run").parameters())
    assert losses(tmp_path / "run") == [event.loss for event in steps]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json", "lock", "metrics.jsonl", "model.safetensors", "state", "train.json",
    ]  # fmt: skip


def test_two_runs_of_one_request_are_equal_and_of_another_seed_are_not(tmp_path, text, small_model, short_run):
    for name in "ab":
        train(small_model, short_run, tmp_path / name, (text,))
    train(small_model, dataclasses.replace(short_run, seed=8), tmp_path / "c", (text,))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


def test_cadences_and_recomputing_do_not_change_the_losses(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "a", (text,))
    other = dataclasses.replace(short_run, eval_every=3, checkpoint_every=5, recompute=True)
    train(small_model, other, tmp_path / "b", (text,))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_training_leaves_the_global_generator_alone(tmp_path, text, small_model, short_run):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        before = torch.get_rng_state()
        train(small_model, short_run, tmp_path / "run", (text,))
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "arch",
    [
        "gpt2",
        "kimi_k3",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ARCHITECTURES if a not in ("gpt2", "kimi_k3")),
    ],
)
def test_after_kill_9_a_run_goes_on_with_the_same_losses_to_the_last_bit(tmp_path, text, arch):
    model, config = killed_run(arch)
    whole = train(model, config, tmp_path / "whole", (text,))

    folder = tmp_path / "killed"
    arguments = [arch, str(folder), str(text), str(torch.get_num_threads())]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "at step 7\n"
        with pytest.raises(BusyError, match=f"process {child.pid}"):
            train(model, config, folder, (text,), resume=True)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL

    assert len(losses(folder)) == 7
    events = []
    resumed = train(model, config, folder, (text,), resume=True, on_event=events.append)
    assert [event.step for event in events if isinstance(event, StepEvent)] == list(range(7, 13))
    assert losses(folder) == losses(tmp_path / "whole")
    assert resumed.val_bits_per_byte == whole.val_bits_per_byte
    assert same_weights(load_model(folder), load_model(tmp_path / "whole"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_after_the_step_saved_and_resumes_to_the_same_losses(
    tmp_path, text, small_model, short_run, number
):
    train(small_model, short_run, tmp_path / "whole", (text,))
    before = signal.getsignal(number)

    def interrupt(event):
        if isinstance(event, StepEvent) and event.step == 4:
            os.kill(os.getpid(), number)

    stopped = train(small_model, short_run, tmp_path / "run", (text,), on_event=interrupt)
    assert (stopped.step, stopped.finished) == (4, False)
    assert signal.getsignal(number) is before
    finished = train(small_model, short_run, tmp_path / "run", (text,), resume=True)
    assert finished.finished
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_second_interrupt_stops_at_once(tmp_path, text, small_model, short_run):
    def interrupt_twice(event):
        if isinstance(event, StepEvent):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small_model, short_run, tmp_path / "run", (text,), on_event=interrupt_twice)
    assert train(small_model, short_run, tmp_path / "run", (text,), resume=True).finished


def test_a_finished_run_is_returned_as_it_stands(tmp_path, text, small_model, short_run):
    first = train(small_model, short_run, tmp_path / "run", (text,))
    content = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train(small_model, short_run, tmp_path / "run", (text,), resume=True) == first
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == content


def test_a_damaged_newest_state_costs_only_the_steps_since_the_one_before(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "whole", (text,))
    train(small_model, short_run, tmp_path / "run", (text,))
    newest = sorted((tmp_path / "run" / "state").iterdir())[-1]
    os.truncate(newest, 1000)
    events = []
    train(small_model, short_run, tmp_path / "run", (text,), resume=True, on_event=events.append)
    assert [event.step for event in events if isinstance(event, StepEvent)] == [10, 11, 12]
    assert any(isinstance(event, NoticeEvent) and str(newest) in event.message for event in events)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_without_one_good_state_nothing_is_touched(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "run", (text,))
    for state in (tmp_path / "run" / "state").iterdir():
        os.truncate(state, 10)
    content = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="None of the 2 states"):
        train(small_model, short_run, tmp_path / "run", (text,), resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == content


def plant(monkeypatch, change):
    """Let `change(model)` run on every model the next run builds."""
    build = run.build

    def planted(*arguments, **options):
        model = build(*arguments, **options)
        change(model)
        return model

    monkeypatch.setattr(run, "build", planted)


def last_linear(model):
    """Path and module of a projection inside the last block."""
    return [(name, m) for name, m in model.named_modules() if name.endswith("ffn.down_proj")][-1]


def test_a_loss_that_is_not_finite_stops_with_step_layer_and_last_good_checkpoint(
    tmp_path, text, short_run, monkeypatch
):
    models = []
    plant(monkeypatch, models.append)

    def spoil(event):
        if isinstance(event, StepEvent) and event.step == 8:
            with torch.no_grad():
                next(last_linear(models[0])[1].parameters())[0] = torch.nan

    model = preset("gpt2", "nano")
    with pytest.raises(TrainingError) as caught:
        train(model, short_run, tmp_path / "run", (text,), on_event=spoil)
    message = str(caught.value)
    assert message.startswith("The loss of step 9 is not finite (nan), first in layer ")
    assert f"layer {last_linear(models[0])[0]};" in message
    assert f"the last good checkpoint is {tmp_path / 'run' / 'state' / 'step-00000006.safetensors'}." in message
    monkeypatch.undo()


def test_a_gradient_that_is_not_finite_stops_with_the_parameter(tmp_path, text, small_model, short_run, monkeypatch):
    def spoil(model):
        # finite on the way forward, NaN on the way back
        last_linear(model)[1].weight.register_hook(lambda gradient: gradient * torch.nan)

    plant(monkeypatch, spoil)
    with pytest.raises(
        TrainingError, match=r"The gradient of step 1 is not finite .*first in blocks\.0.*down_proj\.weight"
    ):
        train(small_model, short_run, tmp_path / "run", (text,))


def test_weights_that_are_not_finite_are_never_saved(tmp_path, text, small_model, short_run, monkeypatch):
    models = []
    plant(monkeypatch, models.append)

    def spoil(event):
        if isinstance(event, StepEvent) and event.step == 6:
            next(models[0].parameters()).data[0] = torch.inf

    with pytest.raises(TrainingError, match=r"After step 6 the weights are not finite, first .*step-00000003"):
        train(small_model, short_run, tmp_path / "run", (text,), on_event=spoil)


def test_a_run_of_minutes_ends_by_the_clock_and_keeps_its_time(tmp_path, text, small_model, monkeypatch):
    # each reading of this clock is a second later than the one before
    seconds = iter(range(10**9))
    original = loop.Session
    monkeypatch.setattr(run, "Session", lambda **fields: original(clock=lambda: float(next(seconds)), **fields))
    config = TrainConfig(rows=2, length=16, minutes=1.0, eval_every=50, checkpoint_every=3)

    def interrupt(event):
        if isinstance(event, StepEvent) and event.elapsed_s > 30:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(small_model, config, tmp_path / "run", (text,), on_event=interrupt)
    assert not stopped.finished
    events = []
    finished = train(small_model, config, tmp_path / "run", (text,), resume=True, on_event=events.append)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert finished.finished
    assert 30 < steps[0].elapsed_s < 40
    assert 55 < steps[-1].elapsed_s < 65
    assert steps[0].total_steps is None
    rates = [
        line["learning_rate"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["event"] == "step"
    ]
    assert rates.index(max(rates)) < 3
    assert rates[-1] < 0.2 * max(rates)


@pytest.mark.parametrize("change", ["learning_rate", "model", "text", "seed"])
def test_resuming_another_request_is_refused_by_what_differs(tmp_path, text, small_model, short_run, change):
    train(small_model, short_run, tmp_path / "run", (text,))
    asked, model, data = short_run, small_model, text
    if change == "model":
        model = preset("linear_attention", "nano")
    elif change == "text":
        data = write_text(tmp_path / "other", seed=5)
    else:
        asked = dataclasses.replace(short_run, **{change: 11})
    words = {
        "learning_rate": r"started with learning_rate = 0\.003 and this asks for learning_rate = 11\.0",
        "seed": "started with seed = 7 and this asks for seed = 11",
        "model": "a run of model gpt2:nano and this asks for linear_attention:nano",
        "text": "started on other text",
    }
    with pytest.raises(RequestError, match=words[change]):
        train(model, asked, tmp_path / "run", (data,), resume=True)


def test_the_text_may_move_between_start_and_resume(tmp_path, text, small_model, short_run):
    first = train(small_model, short_run, tmp_path / "run", (text,))
    text.rename(tmp_path / "moved")
    assert train(small_model, short_run, tmp_path / "run", (tmp_path / "moved",), resume=True) == first


def test_an_existing_run_is_not_trained_over(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "run", (text,))
    with pytest.raises(RequestError, match=r"already holds a run; .* --resume, .* --out"):
        train(small_model, short_run, tmp_path / "run", (text,))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "novel.txt").write_text("chapter one")
    with pytest.raises(RequestError, match="holds files that are not a run"):
        train(small_model, short_run, tmp_path / "mine", (text,))
    with pytest.raises(RequestError, match="is a file"):
        train(small_model, short_run, tmp_path / "mine" / "novel.txt", (text,))
    with pytest.raises(RequestError, match="no run to resume"):
        train(small_model, short_run, tmp_path / "none", (text,), resume=True)


def test_a_process_killed_before_its_run_began_leaves_a_folder_that_can_be_used(tmp_path, text, small_model, short_run):
    folder = tmp_path / "run"
    (folder / "state").mkdir(parents=True)
    (folder / "lock").write_text("1")
    (folder / "metrics.jsonl").touch()
    (folder / ".train.json.123.tmp").write_text('{"form')
    assert train(small_model, short_run, folder, (text,)).finished


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "run", (text,))
    whole = sorted((tmp_path / "run").rglob("*"))
    for name in (".config.json.123.tmp", "state/.step-00000099.safetensors.123.tmp", "state/.tmpAbC123"):
        (tmp_path / "run" / name).write_text("half a fi")
    train(small_model, short_run, tmp_path / "run", (text,), resume=True)
    assert sorted((tmp_path / "run").rglob("*")) == whole


def test_a_run_in_use_is_refused_before_anything_changes(tmp_path, text, small_model, short_run):
    (tmp_path / "run").mkdir()
    with run_lock(tmp_path / "run"), pytest.raises(BusyError, match="in use by process"):
        train(small_model, short_run, tmp_path / "run", (text,))


def test_a_damaged_request_file_is_told(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "run", (text,))
    (tmp_path / "run" / "train.json").write_text('{"format": "statewell-run", "model"')
    with pytest.raises(CheckpointError, match=r"train\.json is damaged"):
        train(small_model, short_run, tmp_path / "run", (text,), resume=True)


def test_windows_past_the_model_or_the_text_are_refused_with_a_length_that_fits(tmp_path, text, short_run):
    model = preset("gpt2", "nano")
    with pytest.raises(RequestError, match=r"2,048 tokens are past gpt2:nano's limit of 1,024; use --set length=1024"):
        train(model, dataclasses.replace(short_run, length=2048), tmp_path / "run", (text,))
    (tmp_path / "short.txt").write_text("only this")
    with pytest.raises(DataError, match=r"--set length="):
        train(model, short_run, tmp_path / "run", (tmp_path / "short.txt",))
    assert not (tmp_path / "run").exists()


def test_other_threads_on_resume_are_told(tmp_path, text, small_model, short_run, monkeypatch):
    train(small_model, short_run, tmp_path / "run", (text,))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    events = []
    train(small_model, short_run, tmp_path / "run", (text,), resume=True, on_event=events.append)
    assert any(isinstance(event, NoticeEvent) and "resumed on 77" in event.message for event in events)


def test_the_request_is_read_back_as_it_was(tmp_path, text, small_model, short_run):
    train(small_model, short_run, tmp_path / "run", (text,))
    request = read_request(tmp_path / "run")
    assert (request.model, request.train, request.data) == (small_model, short_run, (text.resolve(),))


def test_a_parameter_that_no_gradient_reaches_does_not_stop_a_resume(
    tmp_path, text, small_model, short_run, monkeypatch
):
    plant(monkeypatch, lambda model: model.register_parameter("idle", nn.Parameter(torch.ones(2))))
    train(small_model, short_run, tmp_path / "run", (text,))
    assert train(small_model, short_run, tmp_path / "run", (text,), resume=True).finished


def test_a_run_with_a_tokenizer_keeps_its_files_goes_on_with_them_and_generates(tmp_path, text, small_model, short_run):
    tokenizer = load_tokenizer(FORMATS["kimi"](tmp_path / "tokenizer"))
    model = dataclasses.replace(small_model, vocab=tokenizer.vocab + 2)
    first = train(model, short_run, tmp_path / "whole", (text,), tokenizer=tokenizer)
    assert first.val_bits_per_byte < 12  # about 3.3 bytes a token, 9 bits for a token drawn at random

    def interrupt(event):
        if isinstance(event, StepEvent) and event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "run"
    train(model, short_run, folder, (text,), on_event=interrupt, tokenizer=tokenizer)
    assert (folder / "tiktoken.model").read_bytes() == tokenizer.files["tiktoken.model"]
    for path in (tmp_path / "tokenizer").iterdir():
        path.unlink()  # nothing of the run is elsewhere
    (folder / "config.json").unlink()  # as after a kill before the first weights were saved
    assert train(model, short_run, folder, (text,), resume=True).finished
    assert losses(folder) == losses(tmp_path / "whole")
    loaded = load_model(folder)
    assert loaded.tokenizer == tokenizer
    assert "".join(event.text for event in generate(loaded, "def import", max_tokens=4))


def test_what_a_killed_start_left_of_a_tokenizer_does_not_stand_in_the_way(tmp_path, text, small_model, short_run):
    (tmp_path / "run" / "state").mkdir(parents=True)
    (tmp_path / "run" / "tiktoken.model").write_bytes(b"")
    assert train(small_model, short_run, tmp_path / "run", (text,)).finished
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiktoken.model").write_bytes(b"")
    with pytest.raises(RequestError, match="holds files that are not a run"):
        train(small_model, short_run, tmp_path / "other", (text,))


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, text, small_model, short_run):
    tokenizer = load_tokenizer(FORMATS["gpt2"](tmp_path / "tokenizer"))
    with pytest.raises(RequestError, match="has 256 symbols and the text is read as"):
        train(small_model, short_run, tmp_path / "run", (text,), tokenizer=tokenizer)
