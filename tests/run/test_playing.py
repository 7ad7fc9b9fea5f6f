"""A policy played step by step: what is told of an episode is what was played, whatever the pool options."""

import itertools
import json

import numpy as np
import pytest

from rookery.envs.stage import open_stage
from rookery.run import playing, video, viewing
from rookery.run.config import ConfigError
from rookery.run.video import VideoFile, filmed, prepared, require_video


class Always:
    """A policy that does the same thing, and counts how often it was told that an episode begins."""

    def __init__(self, action: int = 1) -> None:
        self.action, self.begun, self.explore = action, 0, set()

    def batch(self, observation, memory, *, first, reward, explore=0.0):
        self.begun += int(first[0])
        self.explore.add(explore)
        return np.full(1, self.action, np.int32), memory


def moments(count, *, env="catch", action=1, policy=None, max_steps=playing.MAX_STEPS, **options):
    stage, pool = open_stage(env, **options)
    return list(itertools.islice(playing.play(policy or Always(action), stage, pool, seed=3, max_steps=max_steps), count))


def test_episodes_follow_each_other_with_steps_rewards_and_returns():
    policy = Always()
    seen = moments(25, policy=policy)
    assert [m.step for m in seen] == [*range(10), *range(10), *range(5)]
    assert [m.episode for m in seen] == [1] * 10 + [2] * 10 + [3] * 5
    ends = [m for m in seen if m.ended]
    assert [m.ended for m in ends] == ["terminated"] * 2 and all(m.total == m.reward != 0 for m in ends)
    assert all(m.total == 0 and m.action in (None, 1) for m in seen if not m.ended) and seen[0].action is None
    assert policy.begun == 3 and policy.explore == {0.0}


def test_returns_are_those_that_were_played_whatever_the_agent_is_shown():
    plain = moments(21, env="point-reach", policy=Reaching())
    clipped = moments(21, env="point-reach", policy=Reaching(), reward_clip=0.01, frame_stack=2)
    assert [m.total for m in plain] == [m.total for m in clipped] and plain[-1].ended == "truncated"
    assert plain[-1].total == pytest.approx(sum(m.reward for m in plain), rel=1e-5)
    assert clipped[-1].observation.shape == (4,), "as the environment shows it, without the stack"


class Reaching(Always):
    def batch(self, observation, memory, *, first, reward, explore=0.0):
        return np.zeros((1, 2), np.float32), memory


def test_an_episode_that_is_too_long_is_cut_and_another_one_begins():
    seen = moments(8, max_steps=3)
    assert [(m.episode, m.step, m.ended) for m in seen[:5]] == [(1, 0, ""), (1, 1, ""), (1, 2, ""), (1, 3, "cut"), (2, 0, "")]


def test_a_moment_is_described_in_a_short_line():
    moment = playing.Moment(2, 7, np.zeros((84, 84), np.uint8), np.array([0.5, -1.25]), 1.0, 12.0, "truncated")
    assert playing.describe(moment, 5) == "episode 2/5  step 7 truncated  reward 1  return 12  action [0.5 -1.25]"
    assert playing.brief({"a": np.arange(20), "b": (np.float32(0.25), np.zeros((3, 3)))}) == (
        "{a: [0 1 2 3 4 5 6 7 … 20 in all], b: (0.25, float64[3, 3] mean 0)}"
    )


def test_the_interval_of_a_mean_is_students():
    std, low, high = playing.spread([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * 1.5811388 / 5**0.5  # of four degrees of freedom, by the table
    assert std == pytest.approx(1.5811388) and high - 3 == pytest.approx(half) and 3 - low == pytest.approx(half)
    assert playing.spread([1.0]) == (None, None, None)


# ------------------------------------------------------------------------------------------------------- viewing


class Looker:
    """A screen that notes what it is shown, and presses keys."""

    def __init__(self, keys=()):
        self.keys, self.shown, self.waits = list(keys), [], []

    def show(self, frame, lines):
        self.shown.append(lines)

    def wait(self, seconds):
        self.waits.append(seconds)
        return self.keys.pop(0) if self.keys else ""

    def close(self): ...


def looked(keys=(), episodes=2, fps=240.0):
    stage, pool = open_stage("catch")
    screen = Looker(keys)
    shown = playing.play(Always(), stage, pool, seed=3)
    return viewing.look(screen, stage, shown, episodes=episodes, fps=fps, title="t"), screen


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(viewing, "AFTER_SECONDS", 0.0)


def test_so_many_episodes_are_shown_with_every_step():
    seen, screen = looked()
    assert len(seen.returns) == 2 and seen.lengths == [9, 9] and len(screen.shown) == 20
    assert screen.shown[3][0].startswith("episode 1/2  step 3  reward 0") and "q leave" in screen.shown[0][-1]
    assert all(len(line) <= 64 for lines in screen.shown for line in lines)


def test_a_key_leaves_skips_holds_and_takes_one_step():
    assert looked("q")[0].returns == []
    assert len(looked(["n"])[1].shown) == 1 + 10, "the rest of the first episode was played unseen"
    seen, screen = looked([" ", ".", ".", "q"])
    assert not seen.returns and len(screen.shown) == 3 and max(screen.waits) == 3600


# ------------------------------------------------------------------------------------------------------- videos


def film(out, **more):
    stage, pool = open_stage("catch")
    return filmed(playing.play(Always(), stage, pool, seed=3), stage, out, **more)


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_video_that_is_read_back_has_the_frames_that_were_shown(tmp_path, kind):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "deep" / f"v.{kind}"
    told = film(out, fps=20.0, overlay=True)
    assert told.lengths == [9] and told.frames == 9 + 10 and told.fps == 20, "the last frame stays half a second"
    with imageio.get_reader(out) as reader:
        frames = [np.asarray(frame)[..., :3] for frame in reader]
    assert list(out.parent.iterdir()) == [out]
    assert frames[0].shape == (told.size[1], told.size[0], 3) and not (told.size[0] % 2 or told.size[1] % 2)
    assert len(frames) == told.frames if kind == "mp4" else len(frames) >= 9
    stage, _ = open_stage("catch")
    stage.reset(3)
    wanted = prepared(stage.frame())
    assert np.abs(frames[0][: wanted.shape[0]].astype(int) - wanted).mean() < 6
    assert np.abs(frames[5].astype(int) - frames[0]).max() > 100, "the ball has moved"


def test_nothing_is_left_of_a_video_that_fails_or_is_not_wanted(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    assert film(tmp_path / "v.mp4", wanted=lambda: False) is None and not [*tmp_path.iterdir()]
    (tmp_path / "v.mp4").write_bytes(b"of before")
    with pytest.raises(OSError, match="burst"), VideoFile(tmp_path / "v.mp4", 10) as file:
        file.add(np.zeros((16, 16, 3), np.uint8))
        raise OSError("burst")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of before"]


def test_frames_are_even_and_neither_tiny_nor_huge():
    assert prepared(np.zeros((7, 5, 3), np.uint8)).shape == (364, 260, 3)
    assert max(prepared(np.zeros((3001, 2000, 3), np.uint8)).shape) <= 1280
    assert prepared("S F\nH G").shape[2] == 3 and prepared(np.zeros((401, 601, 3), np.uint8)).shape == (402, 602, 3)


def test_a_missing_encoder_and_another_kind_of_file_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"\.mp4 or \.gif"):
        video.check_kind(tmp_path / "v.avi")
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rookery\[video\]'"):
        require_video("rookery video")


def test_a_report_is_plain_json():
    report = playing.report_of({"run": "r"}, [1.0], [3], 0.5, cut=0, stochastic=False)
    assert json.loads(json.dumps(report))["actions"] == "greedy" and report["return_interval"] is None
