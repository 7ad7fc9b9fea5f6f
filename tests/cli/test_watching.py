"""watch, video, eval --render and --stochastic, --video-every and doctor, as they are typed."""

import json

import pytest
from command_line import SMALL

from rookery.run import machine


def test_eval_says_how_actions_were_chosen_and_how_returns_vary(trained):
    words = ("eval", "first", "--episodes", "4", "--json")
    greedy, sampled = (json.loads(trained.rookery(*words, *more).out) for more in ((), ("--stochastic",)))
    assert greedy["actions"] == "greedy" and sampled["actions"] == "sampled"
    assert sampled["eval_return_mean"] < 8 and greedy["returns"] != sampled["returns"]
    low, high = sampled["return_interval"]
    assert low < sampled["eval_return_mean"] < high and sampled["return_std"] > 0
    said = trained.rookery("eval", "first", "--episodes", "4", "--stochastic").out
    assert "4 sampled episodes" in said and "95% interval of the mean" in said


def test_frames_need_a_terminal_or_a_display(trained, monkeypatch):
    monkeypatch.setattr("rookery.run.screen.has_display", lambda: False)
    for words in (["watch", "first"], ["eval", "first", "--render"]):
        answer = trained.rookery(*words)
        assert answer.status == 2 and "rookery video RUN" in answer.err and not answer.out


def test_a_policy_is_watched_in_a_window(trained, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    words = ("watch", "first", "--where", "window", "--episodes", "1", "--fps", "240", "--json")
    report = json.loads(trained.rookery(*words).out)
    assert report["lengths"] == [8] and report["actions"] == "greedy" and report["system"] == "a2c"


def test_a_video_is_written_and_told(trained, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "v.mp4"
    report = json.loads(trained.rookery("video", "first", "--out", str(out), "--episodes", "2", "--overlay", "--json").out)
    assert out.stat().st_size > 500 and report["lengths"] == [8, 8] and report["frames"] == 2 * (8 + 2), "the last stays"
    refused = trained.rookery("video", "first", "--out", str(tmp_path / "v.avi"))
    assert refused.status == 2 and ".mp4 or .gif" in refused.err


def test_videos_are_made_while_it_trains_and_one_of_the_end(rookery):
    pytest.importorskip("imageio_ffmpeg")
    words = ("--total-steps", "2000", "--run", "filmed", "--video-every", "10", "--json")
    answer = rookery("train", "a2c", "--env", "catch", *SMALL, *words)
    assert answer.status == 0, answer.err
    films = sorted(path.name for path in (rookery.directory / "runs" / "filmed" / "videos").iterdir())
    assert films[-1] == f"update-{json.loads(answer.out)['updates']:010d}.mp4" and all(name.endswith(".mp4") for name in films)
    assert len(films) >= 2 and films[0] < films[-1], "the first one is waited for"


def test_a_run_goes_on_where_no_video_can_be_made(rookery, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")

    def fails(*args, **kwargs):
        raise OSError("no canvas")

    monkeypatch.setattr("rookery.run.filming.open_stage", fails)
    words = ("--total-steps", "1000", "--run", "filmed", "--video-every", "2")
    answer = rookery("train", "a2c", "--env", "catch", *SMALL, *words)
    assert answer.status == 0 and answer.out.count("no videos: no canvas; the run goes on") == 1, answer


def test_a_missing_encoder_is_refused_before_a_directory_is_made(rookery, monkeypatch):
    monkeypatch.setattr("rookery.run.video.find_spec", lambda name: None)
    answer = rookery("train", "a2c", "--env", "catch", "--video-every", "2")
    assert answer.status == 2 and "pip install 'rookery[video]'" in answer.err and rookery.files == []


def test_the_doctor_tells_of_the_machine_and_leaves_nothing(rookery, monkeypatch):
    monkeypatch.setattr(machine, "_begin_egl", lambda: None)
    report = json.loads(rookery("doctor", "--json").out)
    parts = {finding["part"] for finding in report["findings"]}
    assert report["ok"] and {"cores", "python", "packages", "jax", "runs", "video"} <= parts and rookery.files == []
    monkeypatch.setattr(machine, "_writable", lambda path: False)
    answer = rookery("doctor")
    assert answer.status == 2 and "cannot be written" in answer.out


def test_the_doctor_tells_of_an_environment_and_what_to_type(rookery):
    answer = rookery("doctor", "catch", "--env-options", "rows=6")
    assert answer.status == 0 and "rookery train ppo --env catch --env-options rows=6" in answer.out
    assert "nothing is wrong" in answer.out and rookery.files == []
    refused = rookery("doctor", "CartPol-v1")
    assert refused.status == 2 and "'CartPole-v1'" in refused.err and "Traceback" not in refused.err
