import dataclasses
import json
import subprocess
import sys

import pytest

from statewell.config.load_run import load_train_config, train_config_from_json
from statewell.config.run import DEFAULT_STEPS, TrainConfig, changed_fields, train_defaults
from statewell.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 0),
        ("rows", 2.5),
        ("rows", True),
        ("length", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("clip", float("inf")),
        ("warmup", 1.5),
        ("final_rate", -0.1),
        ("weight_decay", -1.0),
        ("beta2", 1.0),
        ("steps", 0),
        ("minutes", 0.0),
        ("seed", -1),
        ("seed", 2**63),
        ("eval_every", 0),
        ("checkpoint_every", 0),
    ],
)
def test_an_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"{name} = "):
        TrainConfig(**{name: value})


def test_steps_and_minutes_exclude_each_other():
    with pytest.raises(ConfigError, match="not both"):
        TrainConfig(steps=10, minutes=1.0)


def test_the_budget_is_steps_unless_minutes_are_given():
    assert TrainConfig().total_steps == DEFAULT_STEPS
    assert TrainConfig(steps=7).total_steps == 7
    assert TrainConfig(minutes=1.0).total_steps is None


def test_whole_numbers_given_for_floats_are_the_same_config():
    assert json.dumps(dataclasses.asdict(TrainConfig(minutes=2))) == json.dumps(
        dataclasses.asdict(TrainConfig(minutes=2.0))
    )


def test_the_file_is_overruled_by_set_and_set_by_flags(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('rows = 4\nlength = "1Ki"\nlearning_rate = 1\nrecompute = true\n')
    config = load_train_config(
        TrainConfig(), file=file, settings=["rows=5", "seed = 3", "eval_tokens=64k"], flags={"seed": 9}
    )
    assert (config.rows, config.length, config.seed, config.eval_tokens) == (5, 1024, 9, 64_000)
    assert config.learning_rate == 1.0
    assert config.recompute is True


def test_a_later_budget_replaces_an_earlier_one_of_the_other_kind(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("steps = 100\n")
    assert load_train_config(TrainConfig(), file=file, flags={"minutes": 2}).total_steps is None
    assert load_train_config(TrainConfig(minutes=3), file=file).total_steps == 100
    with pytest.raises(ConfigError, match="not both"):
        load_train_config(TrainConfig(), settings=["steps=3", "minutes=1"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lerning_rate=1", r"--set: unknown key 'lerning_rate'; did you mean 'learning_rate'\?"),
        ("rows=many", r"--set: rows = 'many' is not a whole number"),
        ("rows=2.5", r"--set: rows = 2.5 cannot be"),
        ("rows=true", r"--set: rows = True cannot be"),
        ("learning_rate=fast", r"--set: learning_rate = 'fast' cannot be"),
        ("recompute=1", r"--set: recompute = 1 cannot be"),
        ("warmup=2", r"warmup = 2.0 cannot be"),
        ("rows", r"--set takes key=value"),
        ("=3", r"--set takes key=value"),
        ("rows=", r"--set takes key=value"),
        ("rows=[1]", r"--set: rows = \[1\] cannot be"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_source(setting, message):
    with pytest.raises(ConfigError, match=message):
        load_train_config(TrainConfig(), settings=[setting])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"rows = ", "is not TOML"), (b"\xff", "is not UTF-8"), (b"[train]\nrows = 1", "unknown key 'train'")],
)
def test_a_bad_file_is_refused_by_name(tmp_path, content, message):
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"run\.toml.*{message}"):
        load_train_config(TrainConfig(), file=file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_train_config(TrainConfig(), file=tmp_path / "none.toml")


def test_a_config_survives_the_run_file():
    config = TrainConfig(minutes=1.5, recompute=True, seed=2**63 - 1)
    document = json.loads(json.dumps(dataclasses.asdict(config)))
    assert train_config_from_json(document, "train.json") == config
    with pytest.raises(ConfigError, match=r"train\.json: unknown key 'row'"):
        train_config_from_json(document | {"row": 1}, "train.json")


def test_changes_are_named_in_order():
    assert changed_fields(TrainConfig(), TrainConfig(seed=1, rows=2)) == ["rows", "seed"]


def test_every_size_has_a_starting_point():
    assert train_defaults("nano") == TrainConfig()
    assert train_defaults("small").learning_rate < train_defaults("tiny").learning_rate
    assert train_defaults("unheard of") == TrainConfig()


def test_describing_a_run_imports_neither_torch_nor_pydantic():
    code = (
        "import sys, statewell.config.run, statewell.config.load_run; "
        "sys.exit(bool({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
