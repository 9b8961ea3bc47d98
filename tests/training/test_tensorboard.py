"""What TensorBoard shows of many runs, read by TensorBoard's own back end: tags, hyper-parameters, configuration, videos."""

from __future__ import annotations

import io
import warnings

import pytest
from PIL import Image

from taac import configuration
from taac.configuration import TASK_MACROS
from taac.errors import TaacError
from taac.pictures.video import EpisodeVideo
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from taac.training.conduct import hyper_parameters
from tests.methods import DETERMINISTIC, DISCRETE_METHODS, METHODS, fitting
from tests.training.runs import Killed, assert_same_parameters, rows

TINY = [
    "create_environment.env_name = 'Pendulum-v1'", "create_environment.max_episode_steps = 20", "num_env_steps = 240",
    "initial_collect_steps = 100", "hidden_layers = (8,)", "batch_size = 8", "replay_length = 300",
    "evaluation_interval = 120", "evaluation_episodes = 2", "create_experiment.evaluation_envs = 2",
    "Intervals.summary_interval = 60", "checkpoint_interval = 120",
]  # fmt: skip
# What only methods with a switch, durations or choices have.
OWN = {
    "beta": {"beta/switch_probability", "beta/entropy", "beta/alpha", "loss/temperature_beta"},
    "compare": {"beta/reach_through"},
    "skip": {"loss/skip", "skip/observed"},
    "choice": {"choice/entropy", "choice/alpha", "loss/temperature_choice"},
    "price": {"decision/price"},
    "gate": {"loss/gate", "loss/slow_critic", "loss/slow_actor", "critic/slow_q"},
}
EXPECTED_OWN = {
    **{m: OWN["beta"] | OWN["compare"] for m in METHODS if m.startswith("taac") or m == "sac_hybrid"},
    "sdar": OWN["beta"], "temporl": OWN["skip"], "temporl_ddpg": OWN["skip"],
    "sac_krep": OWN["choice"], "tla": OWN["gate"] | OWN["price"],
    "sac_value": {"loss/value", "learning_rate/value"},
}  # fmt: skip


def train(path, method, *params, until=None):
    """Trains as the command does, from wherever the folder stands; with `until`, dies there as if killed."""
    loaded = configuration.load(
        ["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [*TINY, *fitting(method), *params]
    )
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    folder = RunFolder(path)
    if folder.has_checkpoints():
        trainer.resume(folder)
    else:
        about = {"method": method, "seed": trainer.seed, "environment": trainer.environment.name}
        folder.begin(configuration.operative_config(), about)

    def progress(env_steps, *_):
        if until is not None and env_steps >= until:
            raise Killed

    try:
        trainer.train(folder, progress, hyper_parameters(trainer, folder, loaded))
    except Killed:
        pass
    finally:
        trainer.close()
    return trainer


class TensorBoard:
    """TensorBoard's readers and the web applications of its plugins, without a server."""

    def __init__(self, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that TensorBoard brings along
            from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
            from tensorboard.plugins import base_plugin
            from tensorboard.plugins.hparams.hparams_plugin import HParamsPlugin
            from tensorboard.plugins.image.images_plugin import ImagesPlugin

        everything = {"scalars": 0, "images": 0, "tensors": 0}
        self.runs = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance=everything)
        self.runs.AddRunsFromDirectory(str(folder))
        self.runs.Reload()
        provider = data_provider.MultiplexerDataProvider(self.runs, str(folder))
        context = base_plugin.TBContext(data_provider=provider, multiplexer=self.runs, logdir=str(folder))
        self._apps = {"hparams": HParamsPlugin(context), "images": ImagesPlugin(context)}

    def ask(self, plugin, route, json=None, **query):
        """What the browser would be answered."""
        from werkzeug.test import Client

        client = Client(self._apps[plugin].get_plugin_apps()[route])
        answer = client.get("/", query_string=query) if json is None else client.post("/", json=json)
        assert answer.status_code == 200, answer.get_data()
        return answer

    def experiment(self):
        return self.ask("hparams", "/experiment", {"experimentName": ""}).get_json()

    def sessions(self, **more):
        statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        asked = {"experimentName": "", "allowedStatuses": statuses, "startIndex": 0, "sliceSize": 100, "colParams": []}
        return self.ask("hparams", "/session_groups", {**asked, **more}).get_json()["sessionGroups"]

    def tags(self, run, plugin="scalars"):
        return set(self.runs.PluginRunToTagToContent(plugin).get(run, {}))


@pytest.fixture(
    scope="module", params=[["sac_discrete", "taac_q"], pytest.param(METHODS, marks=pytest.mark.slow)], ids=["two", "all"]
)
def campaign(request, tmp_path_factory):
    """A run of each method, with other seeds and discounts."""
    folder = tmp_path_factory.mktemp("campaign")
    for seed, method in enumerate(request.param):
        train(folder / method, method, f"create_experiment.seed = {seed}", f"gamma = 0.9{seed:02d}")
    board = TensorBoard(folder)
    board.methods = request.param
    return board


@pytest.mark.slow
@pytest.mark.parametrize("campaign", [METHODS], ids=["all"], indirect=True)
def test_every_method_has_the_same_tags(campaign):
    assert set(campaign.runs.Runs()) == set(campaign.methods)
    common = campaign.tags("sac")
    for needed in ("evaluation/return", "rollout/return", "rollout/fraction_repeated", "loss/actor", "loss/critic",
                   "critic/q", "policy/entropy", "policy/alpha", "count/decisions", "time/updates_per_second"):  # fmt: skip
        assert needed in common
    for method in campaign.methods:
        found = {tag for tag in campaign.tags(method) if not tag.startswith("schedule/")}  # of the method's gin file
        missing = {"policy/log_std"} if method in DISCRETE_METHODS else set()
        missing |= {"learning_rate/temperature"} if method == "sac_value" else set()  # its alpha is fixed
        if method in DETERMINISTIC:  # whose policy draws nothing
            missing = {tag for tag in common if tag.startswith("policy/") or "temperature" in tag}
        assert found == (common - missing) | EXPECTED_OWN.get(method, set()), method


def test_the_configuration_is_there_as_text(campaign):
    for method in campaign.methods:
        assert campaign.tags(method, "text") == {"config/text_summary"}
        (event,) = campaign.runs.Tensors(method, "config/text_summary")
        text = event.tensor_proto.string_val[0].decode()
        assert "create_agent.algorithm_ctor = @" in text and "gamma = 0.9" in text


def test_the_hparams_view_shows_every_run_and_setting(campaign):
    shown = campaign.experiment()
    assert [m["name"]["tag"] for m in shown["metricInfos"]] == ["evaluation/return"]
    types = {info["name"]: info["type"] for info in shown["hparamInfos"]}
    assert types.keys() == {"method", "environment", "seed", *TASK_MACROS}
    # A column has the type of the first run's value, so what may be a text elsewhere is one: True here, 'scale' there.
    assert (types["gamma"], types["normalize_rewards"]) == ("DATA_TYPE_FLOAT64", "DATA_TYPE_STRING")
    sessions = {s["name"]: s for s in campaign.sessions()}
    assert set(sessions) == set(campaign.methods)
    for seed, method in enumerate(campaign.methods):
        values, metric = sessions[method]["hparams"], sessions[method]["metricValues"][0]
        environment = "Acrobot-v1" if method in DISCRETE_METHODS else "Pendulum-v1"
        assert (values["method"], values["environment"], values["seed"]) == (method, environment, seed)
        assert values["gamma"] == pytest.approx(0.9 + seed / 1000) and values["hidden_layers"] == "(8,)"
        assert values["normalize_rewards"] == "True"
        assert ("beta_min_prob" in values) is (method.startswith("taac") or method in ("sac_hybrid", "sdar"))
        assert metric["name"]["tag"] == "evaluation/return" and metric["trainingStep"] >= 240 and metric["value"] < 0
        assert [s["status"] for s in sessions[method]["sessions"]] == ["STATUS_SUCCESS"]


@pytest.mark.slow
def test_a_resumed_run_is_there_once(tmp_path):
    """Killed before and after its first checkpoint, and gone on with: the same view as of a run that never was."""
    whole, parts = tmp_path / "all" / "whole", tmp_path / "all" / "parts"
    train(whole, "taac")
    for until in (80, 130):
        train(parts, "taac", until=until)
        board = TensorBoard(tmp_path / "all")
        statuses = {s["name"]: s["sessions"][0]["status"] for s in board.sessions()}
        assert statuses == {"whole": "STATUS_SUCCESS", "parts": "STATUS_UNKNOWN"}
    train(parts, "taac")
    board = TensorBoard(tmp_path / "all")
    sessions = {s["name"]: s for s in board.sessions()}
    assert set(sessions) == {"whole", "parts"}
    assert sessions["whole"]["hparams"] == sessions["parts"]["hparams"]
    assert [len(s["sessions"]) for s in sessions.values()] == [1, 1]
    assert {s["sessions"][0]["status"] for s in sessions.values()} == {"STATUS_SUCCESS"}
    metrics = [[(m["value"], m["trainingStep"]) for m in s["metricValues"]] for s in sessions.values()]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 1
    for tag in ("evaluation/return", "count/updates"):
        points = [
            [(e.step, e.tensor_proto.float_val[0]) for e in board.runs.Tensors(r, tag)] for r in ("whole", "parts")
        ]
        assert points[0] == points[1] and points[0]
    assert len(board.runs.Tensors("parts", "config/text_summary")) == 1
    # The first was killed before a checkpoint: the run began anew. The last went on with it.
    assert session_starts(parts) == [1, 1, 0]


def session_starts(folder):
    """How many records of a beginning each event file of a run holds."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    def tags(path):
        return [v.tag for event in LegacyEventFileLoader(str(path)).Load() for v in event.summary.value]

    found = sorted(folder.glob("events.out.tfevents.*"), key=lambda p: p.stat().st_mtime_ns)
    return [tags(path).count("_hparams_/session_start_info") for path in found]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["taac", "sac_nrep"])
def test_videos_change_no_bit_and_are_shown(tmp_path, method):
    bare = train(tmp_path / "bare", method)
    filmed = train(tmp_path / "filmed" / "run", method, "create_experiment.evaluation_video = True")
    assert_same_parameters(bare, filmed)
    assert rows(tmp_path / "bare") == rows(tmp_path / "filmed" / "run")
    board = TensorBoard(tmp_path / "filmed")
    assert board.tags("run", "images") == {"evaluation/video"}
    videos = board.ask("images", "/images", run="run", tag="evaluation/video", sample=0).get_json()
    assert [v["step"] for v in videos] == [int(r["env_steps"]) for r in rows(tmp_path / "bare")]
    for video in videos:
        answer = board.ask("images", "/individualImage", **dict([video["query"].split("=", 1)]))
        assert answer.content_type == "image/gif"
        with Image.open(io.BytesIO(answer.data)) as gif:
            assert 10 < gif.n_frames <= 20 and gif.width == EpisodeVideo.SIDE  # equal frames in a row may be merged
    assert not TensorBoard(tmp_path / "bare").tags(".", "images")


def test_videos_of_what_cannot_be_drawn_are_refused_before_any_work():
    params = ["create_environment.env_name = 'tests.toy_tasks:taac-test/PointMass-v0'",
              "create_experiment.evaluation_video = True"]  # fmt: skip
    configuration.load(["gin/tasks/simple_control.gin", "gin/methods/taac.gin"], [*TINY, *params])
    with pytest.raises(TaacError, match=r"PointMass-v0' cannot be rendered: it has no render mode 'rgb_array'"):
        configuration.build(experiment.create_experiment)
