"""The commands as a user calls them: in a process of their own, from a folder that is not the repository."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from taac.runs import own_runs
from taac.training.interruption import Interruption
from tests import forked
from tests.campaigns.launched import wait_for

ROOT = Path(__file__).resolve().parents[2]
UNCOMPILED = "create_agent.compile = False"  # of runs so long that they would be
SMALL = ("num_env_steps = 400", "initial_collect_steps = 300", "batch_size = 8", "hidden_layers = (8,)",
         "evaluation_interval = 200", "evaluation_episodes = 1", "create_environment.max_episode_steps = 50")  # fmt: skip


def taac(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DISPLAY", None)
    return forked.run(words, cwd=cwd, env=environment)


def params(*more):
    return [word for p in (*SMALL, *more) for word in ("--gin_param", p)]


def train(folder, cwd, *more):
    return taac("train", "--root_dir", folder, "--gin_file", "experiments/smoke.gin", *params(*more), cwd=cwd)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and what training it printed."""
    cwd = tmp_path_factory.mktemp("cwd")
    result = train("run", cwd)
    assert result.returncode == 0, result.stderr
    return cwd / "run", result


def listing(folder):
    """Every file below a folder, with its content."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_train_leaves_a_whole_run(trained):
    folder, result = trained
    assert "evaluation return" in result.stdout.splitlines()[-1]
    assert "updates/s" in result.stderr or "steps/s" in result.stderr
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "finished" and run["environment"] == "Pendulum-v1" and run["seed"] == 0
    assert run["start"] <= run["end"]
    assert run["products"] in ("plain", "onednn") and run["method"] == "taac"
    assert run["command"].startswith("taac train --root_dir run")
    assert all(run["versions"][name] for name in ("taac", "python", "torch", "numpy", "gymnasium", "mujoco"))
    with open(folder / "evaluations.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(r["env_steps"]) for r in rows] == [0, 200, 400]
    assert [int(r["updates"]) for r in rows] == [0, 0, 100]
    assert 0 < int(rows[1]["training_decisions"]) < int(rows[2]["training_decisions"]) < 400
    assert {"updates", "return_mean", "return_std", "length", "fraction_repeated"} <= set(rows[0])
    assert list((folder / "checkpoints").glob("*.json")) and list(folder.glob("events.out.tfevents.*"))
    assert "TaacAlgorithm.td_loss = @TAACTDLoss()" in (folder / "config.gin").read_text()


def test_play_records_demonstrations(trained, tmp_path):
    folder, _ = trained
    play = ("play", "--root_dir", folder, "--num_episodes", 2, "--record_demonstrations", "d.npz")
    recorded = taac(*play, cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout.splitlines()[-1] == "d.npz: 2 episodes, 100 transitions"
    again = taac(*play, cwd=tmp_path)
    assert again.returncode == 1 and "d.npz exists; use a new name" in again.stderr


def test_an_agent_decides_less_at_a_higher_threshold(trained, tmp_path):
    folder, _ = trained
    asked = ("evaluate", "--root_dir", folder, "--num_episodes", 2, "--switch_threshold")
    done = taac(*asked, "0,0.5,0.9999", "--output", "front.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "front.csv") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["switch_threshold"] for row in rows] == [0, 0.5, 0.9999] and rows[0]["hold"] == 1 and rows[0]["delay"] == 0
    decisions = [row["decisions"] for row in rows]
    assert decisions[0] == rows[0]["length"] == 50 and 50 >= decisions[1] >= decisions[2] <= 1
    assert f"{rows[1]['return_mean']:.2f}" in done.stdout and "front.csv" in done.stdout
    played = taac("play", "--root_dir", folder, "--num_episodes", 2, cwd=tmp_path)
    assert f"return {rows[1]['return_mean']:.2f}" in played.stdout  # 0.5 is what the run has
    played = taac("play", "--root_dir", folder, "--num_episodes", 2, "--switch_threshold", 0, cwd=tmp_path)
    assert f"return {rows[0]['return_mean']:.2f}" in played.stdout and "50.0 decisions in 50.0 steps" in played.stdout
    assert taac(*asked, "0.5,0.6", "--output", "front.png", cwd=tmp_path).returncode == 0
    with Image.open(tmp_path / "front.png") as picture:
        assert min(picture.size) > 300


def test_an_agent_is_tried_with_actions_that_are_held_or_late(trained, tmp_path):
    """Pendulum has 50 steps here. Held for 50 steps, or 50 late, the first action and none make the same episode as by hand."""
    folder, _ = trained
    asked = ("evaluate", "--root_dir", folder, "--num_episodes", 2, "--hold", "1,4,50", "--delay", "0,50")
    done = taac(*asked, "--output", "held.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "held.csv") as file:
        rows = {(int(row["delay"]), int(row["hold"])): row for row in csv.DictReader(file)}
    assert [*rows] == [(0, 1), (0, 4), (0, 50), (50, 1), (50, 4), (50, 50)]
    played = taac("play", "--root_dir", folder, "--num_episodes", 2, cwd=tmp_path)
    assert f"return {float(rows[0, 1]['return_mean']):.2f}" in played.stdout
    assert float(rows[0, 50]["decisions"]) <= 1 and float(rows[0, 4]["decisions"]) <= 13
    assert len({rows[50, hold]["return_mean"] for hold in (1, 4, 50)}) == 1  # nothing is ever done
    assert len({rows[0, hold]["return_mean"] for hold in (1, 4, 50)}) == 3
    returns = [float(rows[0, hold]["return_mean"]) for hold in (1, 4, 50)]
    area = (3 * (returns[0] + returns[1]) / 2 + 46 * (returns[1] + returns[2]) / 2) / 49
    assert f"delay 0: mean return over holds {area:.2f}" in done.stdout
    assert taac(*asked, "--output", "held.png", cwd=tmp_path).returncode == 0


def test_the_saved_configuration_trains_the_same_run_again(trained, tmp_path):
    folder, _ = trained
    again = taac("train", "--root_dir", tmp_path / "again", "--gin_file", folder / "config.gin", cwd=tmp_path)
    assert again.returncode == 0, again.stderr

    def rows(path):
        with open(path / "evaluations.csv") as file:
            return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]

    assert rows(tmp_path / "again") == rows(folder)
    assert json.loads((tmp_path / "again" / "run.json").read_text())["method"] == "taac"


def test_a_run_that_diverges_says_so_in_its_folder(tmp_path):
    sac = ("--gin_file", "gin/tasks/simple_control.gin", "--gin_file", "gin/methods/sac.gin")
    result = taac("train", "--root_dir", "run", *sac, *params("learning_rate = 1e10"), cwd=tmp_path)
    assert result.returncode == 1 and "has diverged" in result.stderr and "Traceback" not in result.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "diverged" and 300 < run["diverged"]["env_steps"] <= 400
    assert "Training has diverged" in run["diverged"]["error"]
    (file,) = (tmp_path / "run").glob("diverged-*.json")
    assert f"taac check --batch {file.relative_to(tmp_path)}" in result.stderr
    result = taac("check", "--batch", file, cwd=tmp_path)
    assert result.returncode == 0 and "NOT FINITE" in result.stdout


def test_a_finished_run_is_extended_only_when_asked(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "run")
    longer = ("train", "--root_dir", folder, "--num_env_steps", 440)
    refused = taac(*longer, "--gin_file", folder / "config.gin", cwd=tmp_path)
    assert refused.returncode == 1 and "400 environment steps, and 440 are asked for" in refused.stderr
    assert "Add --extend" in refused.stderr and listing(folder) == listing(trained[0])
    strangers = taac(*longer, "--extend", cwd=tmp_path)
    assert strangers.returncode == 1 and "it is not among your runs" in strangers.stderr and "give --trust" in strangers.stderr
    assert listing(folder) == listing(trained[0])
    own_runs.note(folder, (folder / "config.gin").read_text(), [])
    result = taac(*longer, "--extend", cwd=tmp_path)
    assert result.returncode == 0 and f"resuming {folder} at 400 environment steps" in result.stdout, result.stderr
    about = json.loads((folder / "run.json").read_text())
    assert (about["status"], about["env_steps"], about["updates"]) == ("finished", 440, 140)
    assert [(e["from"], e["to"]) for e in about["extended"]] == [(400, 440)] and "--extend" in about["extended"][0]["command"]
    with pytest.raises(own_runs.NotOwn):
        own_runs.allow_imports(shutil.copytree(folder, tmp_path / "moved"), (folder / "config.gin").read_text())
    longest = ("train", "--root_dir", tmp_path / "moved", "--num_env_steps", 441, "--extend", "--trust")
    trusted = taac(*longest, cwd=tmp_path)
    assert trusted.returncode == 0, trusted.stderr
    useless = taac(*longest, "--gin_file", folder / "config.gin", cwd=tmp_path)
    assert useless.returncode == 1 and "--trust is about the configuration in --root_dir" in useless.stderr
    nothing = taac("train", "--extend", "--root_dir", tmp_path / "none", "--num_env_steps", 440, cwd=tmp_path)
    assert nothing.returncode == 1 and "holds no run: there is no config.gin" in nothing.stderr


OWN_ENVIRONMENT = """
import gin, gymnasium
from gymnasium.envs.classic_control import PendulumEnv
@gin.configurable
class Windy(PendulumEnv):
    def __init__(self, g=10.0, render_mode=None):
        super().__init__(render_mode, g)
"""


@pytest.mark.slow
def test_an_environment_that_gin_configures_needs_no_import_in_a_gin_file(tmp_path):
    (tmp_path / "own_env.py").write_text(OWN_ENVIRONMENT)
    compare = ("compare", "--root_dir", "runs", "--tasks", "own_env:Windy", "--methods", "sac", "--seeds", "1", *params())
    began = taac(*compare, cwd=tmp_path)
    assert began.returncode == 0 and "1 finished" in began.stdout + began.stderr, began.stdout + began.stderr
    (folder,) = (path.parent for path in (tmp_path / "runs").rglob("config.gin"))
    text = (folder / "config.gin").read_text()
    assert text.startswith("import own_env\n") and "Windy.g = 10.0" in text
    again = taac(*compare, cwd=tmp_path)
    assert again.returncode == 0 and " at a time: 1 finished" in again.stdout, again.stderr
    played = taac("play", "--root_dir", folder, "--num_episodes", 1, cwd=tmp_path)
    assert played.returncode == 0, played.stderr


def test_the_folder_of_a_run_is_enough_to_resume_it(tmp_path):
    folder = tmp_path / "run"  # of an own run: no copy of one
    assert train(folder, tmp_path).returncode == 0
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "status": "interrupted"}))
    for words, told in (
        (("--resume_with", "num_envs=2"), "create_environment.num_envs = 2, not 1"),
        (("--resume_with", "learning_rate=0.1", "--set", "gamma=0.9"), "give it with --root_dir alone"),
        (("--resume_with", "learning_rate=0.1", "--extend"), "give it with --root_dir alone"),
        (("--resume_with", "learning_rat=0.1"), "did you mean 'learning_rate'"),
    ):
        refused = taac("train", "--root_dir", folder, *words, cwd=tmp_path)
        assert refused.returncode == 1 and told in refused.stderr, refused.stderr
    changed = taac("train", "--root_dir", folder, "--resume_with", "learning_rate=0.125", cwd=tmp_path)
    told = "note: it went on with other settings at 400 environment steps: Learner.learning_rate = 0.125, before "
    assert changed.returncode == 0 and told in changed.stdout, changed.stderr
    assert "\nlearning_rate = 0.125\n" in (folder / "config.gin").read_text()
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "status": "interrupted"}))
    resumed = taac("train", "--root_dir", folder, cwd=tmp_path)
    assert resumed.returncode == 0 and f"resuming {folder} at 400 environment steps" in resumed.stdout, resumed.stderr
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    again = taac("train", "--root_dir", folder, cwd=tmp_path)
    assert again.returncode == 0 and "already holds this run" in again.stdout
    other = taac("train", "--root_dir", folder, "--set", "gamma=0.5", cwd=tmp_path)
    assert other.returncode == 1 and "holds a run with another configuration" in other.stderr
    config = (folder / "config.gin").read_text()
    (folder / "config.gin").write_text(f"import evil\n{config}")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    strangers = taac("train", "--root_dir", folder, cwd=tmp_path)
    assert strangers.returncode == 1 and f"{folder}/config.gin" in strangers.stderr and "imported" not in strangers.stderr


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    result = train("thesis", tmp_path)
    assert result.returncode != 0 and "holds no run of taac" in result.stderr
    assert list(listing(tmp_path / "thesis")) == [Path("chapter1.txt")]


def test_an_unfinished_run_is_resumed(trained, tmp_path):
    """A run that stopped after its checkpoint at 200 of 400 steps, called again with the same command."""
    code = (
        "from taac.training import trainer\n"
        "save = trainer.Trainer.save\n"
        "def save_and_die(self, *given):\n"
        "    save(self, *given)\n"
        "    import os; os._exit(9)\n"
        "trainer.Trainer.save = save_and_die\n"
        "from taac.commands.main import main\n"
        "main()\n"
    )
    words = ["train", "--root_dir", "run", "--gin_file", "experiments/smoke.gin"]
    words += params("Intervals.checkpoint_interval = 200")
    died = forked.run(words, cwd=tmp_path, code=code)
    assert died.returncode == 9
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    resumed = taac(*words, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming run at 200 environment steps" in resumed.stdout
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "finished" and [r["env_steps"] for r in run["resumed"]] == [200]


def test_ctrl_c_stops_a_run_in_order_and_a_second_one_at_once(tmp_path):
    """With environments in processes of their own, which Ctrl-C reaches too."""
    words = ["train", "--root_dir", "run", "--gin_file", "experiments/smoke.gin"]
    words += params("num_env_steps = 100000", UNCOMPILED, "num_envs = 2", "create_environment.asynchronous = True")
    words += params("checkpoint_interval = 10000", "Intervals.summary_interval = 50", "Evaluator.initial_evaluation = False")
    words += params("create_environment.env_name = 'tests.toy_tasks:taac-test/Held-v0'")

    hold, started = tmp_path / "hold", []

    def give_up():  # so that nothing here waits for ever
        hold.unlink(missing_ok=True)
        for process in started:
            process.kill()

    def start():
        process = forked.Process(words, cwd=tmp_path)
        started.append(process)
        # Each training writes an event file of its own.
        wait_for(lambda: len(list((tmp_path / "run").glob("events.out.tfevents.*"))) == len(started), process)
        return process

    def ask_to_stop(process):
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to all of the terminal's foreground

    def told(process, words):
        return next((line for line in process.stderr if words in line), None) is not None

    watch = threading.Timer(300, give_up)
    watch.daemon = True
    watch.start()
    process = start()
    ask_to_stop(process)
    out, err = process.communicate()
    assert process.returncode == 75, err
    assert "Traceback" not in err and "stopped at once" not in err
    assert "SIGINT at" in err and "resumable: the same command continues" in err
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("*.json")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"

    process = start()
    hold.touch()
    wait_for((tmp_path / "held").exists, process)  # the iteration will not be finished
    ask_to_stop(process)
    assert told(process, "SIGINT: finishing this iteration")
    time.sleep(Interruption.SAME + 0.1)
    ask_to_stop(process)
    assert told(process, "stopped at once")
    assert process.wait() == 75
    hold.unlink()  # lets its environments end, and with them what they hold of the pipes
    out, _ = process.communicate()
    watch.cancel()
    assert "resuming" in out
    assert list((tmp_path / "run" / "checkpoints").glob("*.json")) == [checkpoint]


def long_run(cwd, *more, **begun_with):
    """Begins a run that is stopped by signals alone, in a process group of its own; waits until it trains."""
    words = ["train", "--root_dir", "run", "--gin_file", "experiments/smoke.gin"]
    # A signal during the initial evaluation leaves no checkpoint, because nothing is learnt yet.
    own = ("num_env_steps = 100000", UNCOMPILED, "Intervals.checkpoint_interval = 100000", "Evaluator.initial_evaluation = False")
    words += params(*own, *more)
    process = forked.Process(words, cwd=cwd, **begun_with)
    wait_for(lambda: begun(cwd / "run", 1), process)
    return process


def stopped_in_order(folder):
    status = json.loads((folder / "run.json").read_text())["status"]
    return status == "interrupted" and len(list((folder / "checkpoints").glob("*.json"))) == 1


def test_a_signal_to_all_processes_of_a_run_stops_it_in_order(tmp_path):
    """As a terminal that is closed sends it: environments have processes of their own."""
    process = long_run(tmp_path, "num_envs = 2", "create_environment.asynchronous = True")
    os.killpg(process.pid, signal.SIGHUP)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75 and "SIGHUP at" in err, err
    assert stopped_in_order(tmp_path / "run")


def test_a_run_whose_output_pipe_is_closed_still_stops_in_order(tmp_path):
    """`taac train ... | tee log`: Ctrl-C ends tee at once."""
    process = long_run(tmp_path, one_output=True)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 75
    assert stopped_in_order(tmp_path / "run")


@pytest.mark.parametrize("seconds, code", [(60.0, 3), (0.0, 75)])
def test_a_signal_that_comes_twice_at_once_came_once(seconds, code):
    """A terminal sends it to all processes, and make, or a batch script, passes it on."""
    script = (
        "import os, signal, sys\nfrom taac.training.interruption import Interruption\n"
        f"Interruption.SAME = {seconds}\nwith Interruption() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    sys.exit(3 if stop() else 4)\n"
    )
    result = forked.run(cwd=ROOT, code=script)
    assert result.returncode == code, result.stderr
    assert ("stopped at once" in result.stderr) == (code == 75)


def test_a_signal_that_was_ignored_at_the_start_is_ignored_still(tmp_path):
    process = long_run(tmp_path, ignored=[signal.SIGINT])
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75 and "SIGTERM at" in err and "SIGINT" not in err and "stopped at once" not in err


SCRIPT = [str(Path(sys.executable).with_name("taac"))]


# What keeps the folder out differs by entry, what is imported by command.
@pytest.mark.parametrize("command, entry", [("report", ["-m", "taac"]), pytest.param("play", SCRIPT, marks=pytest.mark.slow)])
def test_modules_of_a_strangers_folder_are_not_imported(tmp_path, command, entry):
    for name in ("absl", "gin", "gymnasium", "imageio", "matplotlib", "numpy", "tensorboard", "torch", "tqdm"):
        (tmp_path / f"{name}.py").write_text("open('code_ran', 'w')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *entry, command, "--root_dir", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and f"taac {command}: " in result.stderr
    assert not (tmp_path / "code_ran").exists()


@pytest.mark.parametrize(
    "flags", [("plot",), pytest.param(("play", "--num_episodes", 1, "--timeline", "time.png"), marks=pytest.mark.slow)]
)
def test_a_matplotlibrc_of_a_strangers_folder_configures_nothing(trained, tmp_path, flags):
    """A pipe would be waited for. LaTeX would read what the file, or a name in a run, has it read."""
    shutil.copytree(trained[0], tmp_path / "run")
    os.mkfifo(tmp_path / "matplotlibrc")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "taac", *map(str, flags), "--root_dir", "run"]
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr


def test_mujoco_logs_nothing_through_a_link(trained, tmp_path):
    """Its warnings go to MUJOCO_LOG.TXT in the working directory."""
    unstable = ["create_environment.env_kwargs = {'reset_noise_scale': 1e12}", "num_env_steps = 8"]
    unstable += ["create_environment.env_name = 'InvertedPendulum-v5'", "initial_collect_steps = 5"]
    done = train(tmp_path / "run", tmp_path, *unstable)
    assert done.returncode == 0 and (tmp_path / "MUJOCO_LOG.TXT").exists(), done.stderr
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "MUJOCO_LOG.TXT").symlink_to(tmp_path / "mine")
    result = taac("play", "--root_dir", "../run", "--num_episodes", 1, cwd=tmp_path / "cwd")
    assert result.returncode == 0 and "Nan, Inf or huge value" in result.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def begun(folder, times):
    """Whether training has begun so many times: each writes an event file of its own."""
    return len(list(folder.glob("events.out.tfevents.*"))) >= times


def test_the_configuration_of_a_strangers_run_imports_nothing(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    (tmp_path / "evil.py").write_text("open('code_ran', 'w')")
    text = (folder / "config.gin").read_text()
    named = text.replace("create_environment.env_name = 'Pendulum-v1'", "create_environment.env_name = 'evil:Pendulum-v1'")
    assert named != text
    for changed in ("import evil\n" + text, named):
        (folder / "config.gin").write_text(changed)
        result = taac("play", "--root_dir", "run", "--num_episodes", 1, cwd=tmp_path)
        assert result.returncode == 1 and "give --trust" in result.stderr, result.stderr
        assert not (tmp_path / "code_ran").exists()
    result = taac("play", "--root_dir", "run", "--num_episodes", 1, "--trust", cwd=tmp_path)
    assert result.returncode == 0 and (tmp_path / "code_ran").exists()


def test_a_run_of_ones_own_environment_is_played_from_anywhere(tmp_path):
    """Trained in the folder of its module; a copy of it asks for trust and says why."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir(), elsewhere.mkdir()
    (project / "mine.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Mine-v0', PendulumEnv, max_episode_steps=50)\n"
    )
    result = train(tmp_path / "run", project, "create_environment.env_name = 'mine:Mine-v0'")
    assert result.returncode == 0, result.stderr
    play = ("play", "--num_episodes", 1, "--root_dir")
    result = taac(*play, tmp_path / "run", cwd=elsewhere)
    assert result.returncode == 0 and "1 episodes of mine:Mine-v0" in result.stdout, result.stderr
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    result = taac(*play, tmp_path / "copy", cwd=project)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    for words in ("could run any code", "give --trust, from the folder that holds the modules", "moved or copied"):
        assert words in result.stderr
    result = taac(*play, tmp_path / "copy", "--trust", cwd=project)
    assert result.returncode == 0, result.stderr


def test_play_prints_and_records(trained):
    folder, _ = trained
    result = taac("play", "--root_dir", "run", "--num_episodes", 2, "--record_file", "x.gif", cwd=folder.parent)
    assert result.returncode == 0, result.stderr
    assert "2 episodes of Pendulum-v1: return -" in result.stdout and " decisions in 50.0 steps" in result.stdout

    with Image.open(folder.parent / "x.gif") as video:
        assert video.n_frames > 25  # 50 steps; equal frames in a row may be merged
        frames = []
        for number in (0, video.n_frames // 2):
            video.seek(number)
            frames.append(video.convert("RGB").tobytes())
    assert frames[0] != frames[1]
    again = taac("play", "--root_dir", "run", "--num_episodes", 2, cwd=folder.parent)
    assert again.stdout == result.stdout.replace("x.gif\n", "")  # greedy play is deterministic
    kept = (folder.parent / "x.gif").read_bytes()
    more = ("play", "--root_dir", "run", "--num_episodes", 2, "--record_episodes", 3)
    fewer = taac(*more, "--record_file", "y.gif", cwd=folder.parent)
    assert fewer.returncode == 1 and "record_episodes 3 is above num_episodes 2" in fewer.stderr
    for flags in (more, ("play", "--root_dir", "run", "--nooverlay")):
        refused = taac(*flags, cwd=folder.parent)
        assert refused.returncode == 1 and "are for a video: add --record_file" in refused.stderr
    refused = taac("play", "--root_dir", "run", "--record_file", "x.gif", cwd=folder.parent)
    assert refused.returncode != 0 and "exists" in refused.stderr
    assert (folder.parent / "x.gif").read_bytes() == kept


def test_play_the_best(trained, tmp_path):
    folder, _ = trained
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    refused = taac("play", "--root_dir", "run", "--num_episodes", 1, cwd=tmp_path)
    assert refused.returncode == 1 and "there is no checkpoint" in refused.stderr
    result = taac("play", "--root_dir", "run", "--num_episodes", 1, "--best", cwd=tmp_path)
    assert result.returncode == 0 and "1 episodes of Pendulum-v1" in result.stdout, result.stderr


@pytest.mark.slow
def test_play_draws_an_episode(trained):
    """Everything at once, beside what play prints without; and refused before any work where it cannot be."""
    folder, _ = trained
    files = {"--record_file": "x.mp4", "--film_strip": "strip.png", "--timeline": "time.png"}
    result = taac("play", "--root_dir", "run", "--num_episodes", 1, *sum(files.items(), ()), cwd=folder.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-3:] == list(files.values())
    bare = taac("play", "--root_dir", "run", "--num_episodes", 1, "--record_file", "bare.mp4", "--nooverlay", cwd=folder.parent)
    assert bare.returncode == 0, bare.stderr
    assert bare.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-3]
    import imageio_ffmpeg

    for name in ("x.mp4", "bare.mp4"):
        frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(folder.parent / name))
        assert frames == 50 and seconds == pytest.approx(50 / 30, abs=0.1)
    refused = taac("play", "--root_dir", "run", "--timeline", "time.png", cwd=folder.parent)
    assert refused.returncode == 1 and "--timeline time.png exists" in refused.stderr
    shown = taac("play", "--help", cwd=folder.parent)
    assert shown.returncode == 0 and all(flag in shown.stdout for flag in ("--film_strip", "--timeline", "--[no]overlay"))


def test_plot_draws_picture_and_table(trained):
    folder, _ = trained
    result = taac("plot", "--root_dir", "run", cwd=folder.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "run/curves.png"

    with Image.open(folder / "curves.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 300
    with open(folder / "curves.csv") as file:
        table = [(r["tag"], int(r["env_steps"])) for r in csv.DictReader(file)]
    assert ("evaluation/return", 400) in table and ("loss/critic", 400) in table


def test_plot_and_report_of_several_runs(trained, tmp_path):
    """Two runs of different versions of torch: refused, until it is allowed."""
    for seed in range(2):
        folder = shutil.copytree(trained[0], tmp_path / "runs" / f"seed_{seed}")
        run = json.loads((folder / "run.json").read_text())
        versions = {**run["versions"], "torch": f"{seed}.0"}
        (folder / "run.json").write_text(json.dumps({**run, "seed": seed, "versions": versions}))
    before = listing(tmp_path / "runs")
    plot = ["plot", "--root_dir", "runs/seed_0", "--root_dir", "runs/seed_1", "--tags", "loss/*,rollout/return", "--x", "updates"]
    for command in (plot, ["report", "--root_dir", "runs"]):
        refused = taac(*command, cwd=tmp_path)
        assert refused.returncode == 1 and "torch" in refused.stderr and "--allow_mixed" in refused.stderr
        assert "Traceback" not in refused.stderr and listing(tmp_path / "runs") == before
    drawn = taac(*plot, "--allow_mixed", "--smoothing", 50, "--output", "out/a.csv", cwd=tmp_path)
    assert drawn.returncode == 0 and drawn.stdout.splitlines()[-1] == "out/a.csv", drawn.stderr
    with open(tmp_path / "out" / "a.csv") as file:
        rows = list(csv.DictReader(file))
    assert {r["tag"] for r in rows} >= {"loss/actor", "loss/critic", "rollout/return"}
    assert {(r["method"], r["runs"], r["x"]) for r in rows} == {("taac", "2", "updates")}
    told = taac("report", "--root_dir", "runs", "--allow_mixed", "--output_dir", "out", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert {"out/report.md", "out/report.html"} <= set(told.stdout.splitlines())
    assert "warning: not comparable: version of torch" in told.stdout and listing(tmp_path / "runs") == before


def test_check_prints_what_would_be_trained(tmp_path):
    result = taac(
        "check", "--gin_file", "gin/tasks/simple_control.gin", "--gin_file", "gin/methods/taac.gin", "--root_dir", "run",
        "--set", "collectors=1", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    out = result.stdout
    assert "TaacAlgorithm.beta_min_prob = %beta_min_prob" in out and "create_experiment.collectors = 1 " in out
    assert "target entropy -1.6094 nats" in out and "0.1985 nats" in out
    # A frame: step_type 1, reward 4, discount 4, observation 2 x 4, prev_action 4, duration 2, tau 4, b 1 bytes.
    assert f"replay buffer: {100_000 * (1 + 4 + 4 + 8 + 4 + 2 + 4 + 1)} bytes" in out
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_it_was_marked_finished_is_marked_then(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "status": "running"}))
    result = train("run", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].split("s; ")[1] == trained[1].stdout.splitlines()[-1].split("s; ")[1]
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_gin_file_imports_a_module_from_the_working_directory(tmp_path):
    """Whose environment is made in worker processes, too."""
    (tmp_path / "mine.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Mine-v0', PendulumEnv, max_episode_steps=50)\n"
    )
    (tmp_path / "mine.gin").write_text(
        "import mine\ninclude 'experiments/smoke.gin'\n"
        "create_environment.env_name = 'Mine-v0'\ncreate_environment.asynchronous = True\n"
    )
    # As the installed `taac` command does: the script's folder, not the working one, is on the path.
    code = "import sys; sys.path = [p for p in sys.path if p]; from taac.commands.main import main; main()"
    words = ["train", "--root_dir", "run", "--gin_file", "mine.gin"]
    words += params("num_env_steps = 310", "create_experiment.evaluation_envs = 1", "Evaluator.initial_evaluation = False")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    (tmp_path / "run_taac.py").write_text(f"if __name__ == '__main__':\n    {code}\n")
    result = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "run_taac.py", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_an_algorithm_that_fails_while_it_learns_leaves_a_failed_run_and_a_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gin\nfrom taac.algorithms.taac import TaacAlgorithm\n"
        "@gin.configurable\n"
        "class MyAlgorithm(TaacAlgorithm):\n"
        "    calls = 0\n"
        "    def train_step(self, experience):\n"
        "        self.calls += 1\n"
        "        if self.calls > 5:\n"
        "            raise ValueError('out of luck')\n"
        "        return super().train_step(experience)\n"
    )
    (tmp_path / "mine.gin").write_text(
        "import mine\ninclude 'experiments/smoke.gin'\ncreate_agent.algorithm_ctor = @MyAlgorithm\n"
    )
    result = taac("train", "--root_dir", "run", "--gin_file", "mine.gin", *params(), cwd=tmp_path)
    assert result.returncode == 1 and "in train_step" in result.stderr and "out of luck" in result.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "failed" and run["error"] == "ValueError: out of luck"


def test_a_short_command_whose_reader_has_gone_ends_without_a_word(tmp_path):
    command = f"{shlex.quote(sys.executable)} -m taac list | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    "words, closed, shown",
    [("list", ">&-", ""), ("list", "2>&-", "methods"), ("--version", "<&- >&- 2>&-", ""), ("list", "1</dev/null", "")],
)
def test_a_closed_stream_ends_no_command(tmp_path, words, closed, shown):
    command = f"{shlex.quote(sys.executable)} -m taac {words} {closed}; exit $?"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith(shown)


def test_short_flags_choose_the_folder_and_check_tells_what_they_stand_for(tmp_path):
    short = ["--task", "Pendulum-v1", "--method", "taac", "--seed", "3", "--num_env_steps", "4e2"]
    short += [word for p in SMALL[1:] for word in ("--set", p.replace(" ", "").replace("(8,)", "8,"))]
    checked = taac("check", *short, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    lines = checked.stdout.splitlines()
    assert "--method taac: gin/methods/taac.gin" in lines and "--num_env_steps: num_env_steps = 400" in lines
    assert any(line.startswith("batch_size = 8 ") and line.endswith("# --set") for line in lines)
    first = taac("train", *short, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "runs" / "Pendulum-v1" / "taac" / "seed_3"
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["method"], run["seed"]) == ("finished", "taac", 3)
    assert "\nnum_env_steps = 400\n" in (folder / "config.gin").read_text()
    before = listing(folder)
    again = taac("train", *short, cwd=tmp_path)
    assert again.returncode == 0 and "already holds this run" in again.stdout
    other = taac("train", *short, "--set", "gamma=0.9", cwd=tmp_path)
    assert other.returncode == 1 and "holds a run with another configuration" in other.stderr
    assert "-gamma = 0.99" in other.stderr and "+gamma = 0.9" in other.stderr and "Traceback" not in other.stderr
    assert listing(folder) == before


def test_list_and_version(tmp_path):
    from taac import __version__
    from taac.configuration import shipped

    listed, version = taac("list", cwd=tmp_path), taac("--version", cwd=tmp_path)
    assert listed.returncode == version.returncode == 0 and version.stdout == f"taac {__version__}\n"
    for kind in ("methods", "tasks"):
        for name, path in shipped.files(kind).items():
            assert any(line.split() == [name, *shipped.about(path).split()] for line in listed.stdout.splitlines())
