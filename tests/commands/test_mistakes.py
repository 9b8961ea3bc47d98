"""The commonest mistakes at the command line: each is refused with a message that blames the right thing, and leaves nothing."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys

import pytest
from absl import flags

from taac.commands.main import main
from taac.runs import durable
from tests.analysis.campaigns import make_run

TASK, METHOD = "gin/tasks/simple_control.gin", "gin/methods/sac.gin"
TRAIN = ["train", "--task", "Pendulum-v1", "--method", "taac"]
CHECK = ["check", "--gin_file", TASK, "--gin_file", METHOD, "--gin_param"]
SWEEP = ["sweep", "--root_dir", "S", "--task", "Pendulum-v1", "--method", "sac"]
COMPARE = ["compare", "--root_dir", "R", "--tasks", "Pendulum-v1", "--methods"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls a command in this process, in an empty folder; returns exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logging.getLogger("absl").level

    def called(*words):
        before = set(flags.FLAGS)
        try:
            with pytest.raises(SystemExit) as ended:
                main(["taac", *words])
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
            logging.getLogger("absl").setLevel(level)
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return called


MISTAKES = {
    # gin's notation
    "text without quotes": (
        [*CHECK, "create_environment.env_name = Pendulum-v1"],
        ["--gin_param", "put text in quotes: create_environment.env_name = 'Pendulum-v1'",
         "--set create_environment.env_name=Pendulum-v1"],
    ),
    "a seed for the trial of an environment": (
        ["check", "--env_name", "Pendulum-v1", "--seed", "0"], ["use only one of --env_name", "--seed"],
    ),
    "a word of another language": ([*CHECK, "normalize_rewards = true"], ["write normalize_rewards = True"]),
    "a list without parentheses": ([*CHECK, "hidden_layers = 128,128"], ["parentheses: hidden_layers = (128,128)"]),
    "a calculation": ([*CHECK, "num_env_steps = 10**5"], ["not calculated", "write the number itself"]),
    "no equals sign": ([*CHECK, "num_env_steps 20000"], ["NAME = VALUE: num_env_steps = 20000"]),
    "a schedule where none can be": (
        [*CHECK, "gamma = @LinearSchedule()"],
        ["--gin_param: gamma =", "BaseTDLoss.gamma cannot follow a LinearSchedule", "Learner.learning_rate"],
    ),
    # what to train
    "nothing": (["train"], ["--task and --method are missing", "--task Pendulum-v1 --method taac"]),
    "a task alone": (["train", "--task", "Pendulum-v1"], ["--method is missing beside --task Pendulum-v1", "taac_ntd"]),
    "a method alone": (["train", "--method", "taac"], ["--task is missing beside --method taac"]),
    "a file of a task alone": (["check", "--gin_file", TASK], ["there is no method: give --method taac"]),
    "an unknown method": ([*TRAIN[:3], "--method", "ppo"], ["there is no method 'ppo'.", "sac_ntd", "own"]),
    "a misspelt method": ([*TRAIN[:3], "--method", "sca"], ["did you mean 'sac'?"]),
    "a method in capitals": ([*TRAIN[:3], "--method", "TAAC"], ["did you mean 'taac'?"]),
    "an environment as the method": (
        ["train", "--task", "taac", "--method", "Pendulum-v1"],
        ["no method 'Pendulum-v1'; to train on that environment, give it as --task. Give"],
    ),
    "several methods of one run": ([*TRAIN[:3], "--method", "sac,taac"], ["`taac compare --methods sac,taac`"]),
    "several tasks of one run": (["train", "--task", "A-v1,B-v1", "--method", "sac"], ["`taac compare --tasks A-v1,B-v1`"]),
    "a file of a method alone": (["check", "--gin_file", METHOD], ["'num_envs' has no value", "give --task"]),
    "an environment without its version": (
        ["check", "--task", "Pendulum", "--method", "taac"], ["'Pendulum'", "did you mean 'Pendulum-v1'?"],
    ),
    "an environment of an earlier version": (["check", "--task", "Pendulum-v0", "--method", "taac"], ["Pendulum-v0"]),
    "a module that is not there": (["check", "--task", "my_envs:Mine-v0", "--method", "taac"], ["No module named 'my_envs'"]),
    "a method that does not fit": (
        ["train", "--task", "CartPole-v1", "--method", "taac"], ["TaacAlgorithm needs a continuous", "sac_discrete"],
    ),
    "a file that is not there": (["train", "--task", "mine/reach.gin", "--method", "sac"], ["--task mine/reach.gin", "no file"]),
    "no folder": (["train", "--gin_file", "experiments/smoke.gin"], ["--root_dir is missing", "folder of the run"]),
    # settings
    "a misspelt setting": ([*TRAIN, "--set", "learning_rte=1"], ["'learning_rte'; did you mean 'learning_rate'?"]),
    "another tool's setting": ([*TRAIN, "--set", "lr=1e-3"], ["no parameter named 'lr'", "docs/migration.md"]),
    "an object without its call": (
        [*TRAIN, "--set", "trajectory=@LinearTrajectory"], ["LinearTrajectory is a class", "written @LinearTrajectory()"],
    ),
    "a class as text": (
        [*TRAIN, "--set", "optimizer_ctor=AdamW"],
        ["'AdamW' has the wrong type: expected Callable[..., Optimizer]", "is written @AdamW,"],
    ),
    "a scope that is not used": (
        [*TRAIN, "--gin_param", "Learner.learning_rate = @rate/LinearSchedule()", "--gin_param", "rate/LinearSchedule.end = 0.0",
         "--gin_param", "rate/LinearSchedule.updates = 9", "--gin_param", "rat/LinearSchedule.start = 1e-3"],
        ["missing", "'start'", "Another scope has rat/LinearSchedule.start = 0.001"],
    ),
    "settings of an environment alone": (
        ["check", "--env_name", "Pendulum-v1", "--set", "env_kwargs={'g': 9}"], ["with settings), got --set and --env_name"],
    ),
    "a setting of several": ([*TRAIN, "--set", "epsilon=1"], ["several constructors", "Learner.epsilon"]),
    "a setting without an equals sign": ([*TRAIN, "--set", "gamma", "0.9"], ["--set learning_rate=1e-3"]),
    "a value of another kind": ([*TRAIN, "--set", "learning_rate=fast"],
                                ["--set: learning_rate = 'fast'", "for Learner.learning_rate: expected float"]),
    "a flag of another package": ([*TRAIN, "--total-timesteps", "9"], ["call total_timesteps is num_env_steps"]),
    "a file as an environment": (
        ["train", "--method", "sac", "--task", "./mine.py:Own"], ["'./mine.py' is no module", "'mine:Own', in the folder"],
    ),
    "one number for a list": (
        [*TRAIN, "--set", "hidden_layers=256"], ["expected Sequence[int]", "a list of one is written (256,)"],
    ),
    "steps in words": ([*TRAIN, "--num_env_steps", "many"], ["--num_env_steps: num_env_steps = 'many'", "expected int"]),
    "a short run": ([*TRAIN, "--num_env_steps", "500"], ["initial_collect_steps 1000", "--set initial_collect_steps=50"]),
    "a setting of another method": (
        [*TRAIN, "--set", "ZetaExplorer.mu=3"], ["--set: ZetaExplorer.mu = 3", "nothing in this experiment uses"],
    ),
    "a seed in words": ([*TRAIN, "--seed", "abc"], ["--seed=abc"]),
    "a run to load from that is not there": (
        [*TRAIN, "--set", "load_from=runs/nothing:actor"], ["there is no checkpoint in runs/nothing/checkpoints"],
    ),
    "a run to load from without its module": ([*TRAIN, "--set", "load_from=runs/nothing"], ["FOLDER_OF_A_RUN:MODULE"]),
    # compare
    "an unknown method to compare": ([*COMPARE, "sac,ppo"], ["there is no method 'ppo'", "taac_ntd"]),
    "a method to compare that does not fit": (
        [*COMPARE, "sac,sac_discrete"], ["sac_discrete on Pendulum-v1: DiscreteSacAlgorithm needs discrete actions"],
    ),
    "a setting of one method to compare": (
        [*COMPARE, "taac,sac", "--set", "max_repeat_steps=3"], ["sac on Pendulum-v1: --set: TaacAlgorithm.max_repeat_steps"],
    ),
    "a list with spaces": ([*COMPARE, "sac", "taac"], ["unexpected arguments taac", "lists have commas and no spaces"]),
    "no seeds": ([*COMPARE, "sac", "--seeds", "0"], ["must be 1 or more", "write 0,"]),
    "seeds in words": ([*COMPARE, "sac", "--seeds", "a,b"], ["--seeds", "such as 0,7", "'a,b'"]),
    "a comparison's file to train": (
        ["train", "--root_dir", "R", "--gin_file", "experiments/quick_compare.gin"], ["a comparison, for `taac compare`"],
    ),
    # flags and commands
    "a macro with hyphens": (["train", "--batch-size", "9"], ["no flag --batch-size; settings are given as --set batch_size=V"]),
    "a misspelt flag": (["train", "--rootdir", "x"], ["did you mean '--root_dir'?"]),
    "an unheard-of flag": (["train", "--zzzz", "x"], ["no flag --zzzz; settings are given as --set NAME=VALUE"]),
    "a flag of absl's logging": (["train", "--log_dir", "x"], ["no flag --log_dir; what other packages call log_dir is --root"]),
    "a flag like one of absl's": (["evaluate", "--verbose", "x"], ["no flag --verbose\n"]),
    "a setting of other methods": (
        ["check", "--task", "Pendulum-v1", "--method", "sac+decision_price=0.1"],
        ["others that have it: MixedSacAlgorithm.decision_price, "],
    ),
    "a misspelt flag of a plain command": (["play", "--rootdir", "R"], ["no flag --rootdir; did you mean '--root_dir'?"]),
    "methods of one run": (["train", "--methods", "sac"], ["did you mean '--method'?"]),
    "a misspelt command": (["trian", "--root_dir", "R"], ["no command 'trian'; did you mean 'train'?"]),
    "nothing to search": (SWEEP, ["--search is missing", "learning_rate=log:1e-4..1e-2"]),
    "a misspelt setting to search": ([*SWEEP, "--search", "gama=0.9..1"], ["no parameter named 'gama'", "did you mean 'gamma'"]),
    "a range with an end that is refused": ([*SWEEP, "--search", "gamma=0.9..3"], ["gamma must be a number in [0, 1]", "3.0"]),
    "a setting that is searched and set": (
        [*SWEEP, "--search", "gamma=0.9..1", "--set", "gamma=0.5"], ["set the same, gamma; give one of them"],
    ),
    "a search of the length": (
        [*SWEEP, "--search", "num_env_steps=20000|30000"], ["steps and evaluations: do not search num_env_steps"],
    ),
    "a folder without its flag": (["play", "runs/x"], ["unexpected arguments runs/x; use flags only, such as --"]),
    "words instead of flags": (["train", "Pendulum-v1", "taac"], ["unexpected arguments", "such as --task Pendulum-v1"]),
    "nothing to compare": (COMPARE[:-1], ["--methods is missing", "Comparison.methods"]),
    "no folder of a run": (["play", "--root_dir", "run"], ["holds no run"]),
    "a video of another kind": (["play", "--root_dir", "run", "--record_file", "x.avi"], [".gif or .mp4"]),
    "no run to evaluate": (["evaluate", "--root_dir", "."], ["holds no run"]),
    "a picture of many runs": (["evaluate", "--root_dir", ".", "--output", "x.png"], ["x.png: a picture is of one run"]),
    "a hold of 0": (["evaluate", "--root_dir", "run", "--hold", "0,1"], ["hold must be 1 or more steps, got 0"]),
    "no hold": (["evaluate", "--root_dir", "run", "--hold", ""], ["hold and delay must be a number each", "got none"]),
    "half a delay": (["evaluate", "--root_dir", "run", "--delay", "0.5"], ["--delay must be integers", "'0.5'"]),
    "thresholds in words": (["evaluate", "--root_dir", "run", "--switch_threshold", "half,0.6"], ["numbers", "'half,0.6'"]),
    "no episodes": (["play", "--root_dir", "run", "--num_episodes", "0"], ["num_episodes"]),
    "a picture with control characters": (["play", "--timeline", "a\x1bb.png"], [r"'a\x1bb.png' holds line ends"]),
    "a folder that no line can name": (["check", "--root_dir", "a\nb", *TRAIN[1:]], ["--root_dir 'a\\nb' holds line ends"]),
    "a misspelt environment to check": (["check", "--env_name", "Pendulun-v1"], ["doesn't exist"]),
    "no batch to explain": (["check", "--batch", "nothing.json"], ["nothing.json cannot be read"]),
    "a plot of nothing": (["plot"], ["--root_dir is missing"]),
    "a plot of no folder": (["plot", "--root_dir", "run"], ["is not a folder"]),
    "a plot of an empty folder": (["plot", "--root_dir", "."], ["holds no run"]),
    "a plot of another kind": (["plot", "--root_dir", ".", "--output", "a.pdf"], ["must end in .png or .svg or .csv"]),
    "a plot in a file": (["plot", "--root_dir", ".", "--output", "/dev/null/x.png"], ["/dev/null exists and is not a folder"]),
    "another axis": (["plot", "--root_dir", ".", "--x", "steps"], ["--x must be one of env_steps, decisions, updates, wall"]),
    "negative smoothing": (["plot", "--root_dir", ".", "--smoothing", "-1"], ["--smoothing must be 0 or more"]),
    "a report of an empty folder": (["report", "--root_dir", "."], ["holds no run"]),
    "a report in a file": (["report", "--root_dir", ".", "--output_dir", "/dev/null"], ["/dev/null exists and is not a folder"]),
    "no evaluations to report": (["report", "--root_dir", ".", "--last_evaluations", "0"], ["last_evaluations"]),
    "an unbounded action space": (
        ["check", "--task", "tests.toy_tasks:taac-test/Unbounded-v0", "--method", "sac"], ["unbounded"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_leaves_nothing(call, tmp_path, mistake):
    words, told = MISTAKES[mistake]
    code, printed = call(*words)
    assert code in (1, 2) and "Traceback" not in printed
    assert all(text in printed for text in told), printed
    assert os.listdir(tmp_path) == []


def test_what_check_prints(call):
    code, printed = call("check", "--env_name", "Pendulum-v1")
    assert code == 0 and "can be trained on" in printed
    code, printed = call(*CHECK, "gamma = 0.5")
    assert code == 0 and re.search(r"^gamma = 0.5 +# --gin_param$", printed, re.M)
    assert re.search(r"^BaseTDLoss.gamma = %gamma +# .*gin/", printed, re.M) and "what looks wrong: nothing" in printed
    assert "90000 updates in all, 0.9 a step of the whole run; 512 frames are replayed for each" in printed
    ratio = ["UpdateRatio.updates_per_env_step = @LinearSchedule()", "LinearSchedule.start = 0.0", "LinearSchedule.end = 1.0"]
    params = [word for param in (*ratio, "LinearSchedule.env_steps = 100000") for word in ("--gin_param", param)]
    given = ["--set", "hidden_layers=8,", "--set", "beta_min_prob=0.1", "--set", "initial_collect_steps=10000", *params]
    code, printed = call("check", "--task", "Pendulum-v1", "--method", "sac", *given)
    # Actor: 3x8+8, and two heads 8x1+1. Critics, two: 4x8+8, 8x1+1. The temperature. Targets are not trained.
    assert f"SacAlgorithm on cpu, {32 + 2 * 9 + 2 * (40 + 9) + 1} trainable parameters" in printed
    # The area below the line from 0 to 1, from 10000 to 100000 steps: 49500.
    assert "updates per environment step: 0.55, after 10000 steps" in printed
    assert "  49500 updates in all, 0.495 a step" in printed
    assert "what looks wrong:\n  --set: beta_min_prob = 0.1 has no effect" in printed


def test_what_is_no_mistake(call):
    """Short names, lists, whole floats and single flags of a comparison."""
    words = ["--task", "Pendulum-v1", "--method", "sac", "--seed", "0,1", "--num_env_steps", "2e4", "--set", "gamma=0.9"]
    code, printed = call("compare", "--root_dir", "R", "--dry_run", *words)
    lines = printed.splitlines()
    assert code == 0 and len(lines) == 2, printed
    for seed, line in enumerate(lines):
        assert line.endswith(f" --task Pendulum-v1 --method sac --set gamma=0.9 --num_env_steps 2e4 --seed {seed}")


def test_one_seed_of_a_comparison_is_that_seed(call):
    """As in the other commands, where --seed 3 is the seed 3, and not three seeds."""
    words = ["compare", "--root_dir", "R", "--dry_run", "--task", "Pendulum-v1", "--method", "sac"]
    code, printed = call(*words, "--seed", "3")
    assert code == 0 and printed.count("taac train") == 1 and "--seed 3" in printed, printed
    code, printed = call(*words, "--seed", "3", "--seeds", "2")
    assert code == 1 and "--seed 3 and --seeds 2 are both given" in printed


@pytest.mark.parametrize("flag, value", [("slurm_partition", "gpu"), ("ray_gpus", "0.5")])
def test_resources_of_a_launcher_that_is_not_used_are_refused(call, flag, value):
    """Without --launcher, all runs would begin on the machine where the command is called."""
    words = ["compare", "--root_dir", "R", "--task", "Pendulum-v1", "--method", "sac", "--seeds", "1", f"--{flag}", value]
    code, printed = call(*words)
    assert code == 1 and f"--{flag} is for --launcher {flag[:-4].split('_')[0]}" in printed and not os.path.exists("R"), printed


@pytest.mark.parametrize("command, flag", [("report", "--output_dir"), ("plot", "--output")])
def test_runs_in_a_folder_that_nobody_can_write_to(call, tmp_path, monkeypatch, command, flag):
    def read_only(path, data):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(durable, "write", read_only)
    make_run(tmp_path / "run")
    code, told = call(command, "--root_dir", "run")
    assert code == 1 and "Read-only file system" in told and f"{flag} names another place to write to" in told
