import json

from statewell.train.events import EvalEvent, StepEvent
from statewell.train.metrics import MetricsLog, read_metrics


def step_event(step, loss=1.0):
    return StepEvent(
        step=step,
        total_steps=9,
        share=step / 9,
        tokens=step * 32,
        loss=loss,
        gradient_norm=0.5,
        learning_rate=1e-3,
        tokens_per_s=100.0,
        elapsed_s=0.1,
        seconds_left=3.0,
    )


def test_lines_hold_the_loss_to_the_last_bit(tmp_path):
    losses = [2.0 / 3.0, 1e-300, 5.5]
    with MetricsLog(tmp_path / "m", 0) as log:
        for step, loss in enumerate(losses, start=1):
            log.append(step_event(step, loss))
        log.append(EvalEvent(step=3, tokens=96, val_bits_per_byte=1 / 7))
        log.sync()
    lines = read_metrics(tmp_path / "m")
    assert [line["event"] for line in lines] == ["step"] * 3 + ["eval"]
    assert [line["loss"] for line in lines[:3]] == losses
    assert lines[3]["val_bits_per_byte"] == 1 / 7
    assert "seconds_left" not in lines[0]


def test_a_resumed_log_drops_what_comes_after_its_step_and_what_was_cut_short(tmp_path):
    path = tmp_path / "m"
    with MetricsLog(path, 0) as log:
        for step in range(1, 7):
            log.append(step_event(step))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10] + b"\n" + b'{"step": 2, "event": "st')
    with MetricsLog(path, 4) as log:
        log.append(step_event(5))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5]


def test_reading_leaves_out_a_line_cut_short(tmp_path):
    (tmp_path / "m").write_text('{"event": "step", "step": 1}\n{"event": "ste')
    assert [line["step"] for line in read_metrics(tmp_path / "m")] == [1]
