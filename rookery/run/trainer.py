"""The Trainer drives a topology step by step and owns everything around it: budgets, evaluation, checkpoints, callbacks.

What a run tells is in rookery/run/journal.py, how it stands in rookery/run/standing.py.

trainer = rookery.Trainer("ppo", env="CartPole-v1", total_steps=100_000)
for progress in trainer:
    print(progress.env_steps, trainer.return_mean)
trainer.save()
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rookery import envs
from rookery.data.files import Gone
from rookery.run import boards, checkpoint, config, health, startup
from rookery.run.assemble import assemble, open_runtime, pool_factory, saved_params, shown_to
from rookery.run.budget import TrainingClock
from rookery.run.callbacks import Callbacks, OnCheckpoint, OnEnd, OnEvaluation, OnStep
from rookery.run.calling import Caller
from rookery.run.contents import caught_up, contents_of, loaded_for, meta_of
from rookery.run.directory import BEST, LAST, Run
from rookery.run.display import Row
from rookery.run.filming import Filming, prepare_filming
from rookery.run.journal import Journal
from rookery.run.kept import BestPolicy, resumable
from rookery.run.loading import policy_of
from rookery.run.meter import Meter
from rookery.run.resuming import Resumption, take_over
from rookery.run.returns import ReturnWindow, of_seeds
from rookery.run.saving import Milestones, Saver, insist
from rookery.run.standing import Result, last_good, metrics_of, num_parameters, row_of
from rookery.run.watchdog import Watchdog
from rookery.signals import Interrupted
from rookery.topologies.plan import MAIN
from rookery.types import EnvPool, PyTree


class Trainer:
    """A run in the making. Iterate over it, or call `advance` step by step; `close` it, or use `with`."""

    def __init__(
        self,
        system: str | Any = "ppo",
        *,
        env: Any,
        env_options: dict[str, Any] | None = None,
        topology: Any = None,
        torso: Any = None,
        began: float | None = None,
        progress: bool | None = False,
        on_step: OnStep = None,
        on_evaluation: OnEvaluation = None,
        on_checkpoint: OnCheckpoint = None,
        on_end: OnEnd = None,
        **options: Any,
    ) -> None:
        """system: a name, or an algorithm (a dataclass with `build`); options: of algorithm, topology and run, by name.

        on_...: functions that are called (rookery/run/callbacks.py). progress: draw how it stands; None: where it can be drawn
        in place."""
        called = Callbacks(on_step=on_step, on_evaluation=on_evaluation, on_checkpoint=on_checkpoint, on_end=on_end)
        startup.prepare()
        asked = {"env_options": env_options, "topology": topology, "torso": torso}
        self._setup(config.resolve(system, env=env, **asked, **options), began, called, progress)

    @classmethod
    def from_config(
        cls, cfg: config.Config, *, began: float | None = None, callbacks: Callbacks | None = None,
        progress: bool | None = False,
    ) -> Trainer:  # fmt: skip
        startup.prepare()
        trainer = cls.__new__(cls)
        trainer._setup(cfg, began, callbacks or Callbacks(), progress)
        return trainer

    def _setup(self, cfg: config.Config, began: float | None, callbacks: Callbacks, progress: bool | None) -> None:
        """Build the parts of the run; refuse all that can be refused before a worker starts and before a directory is made."""
        from rookery.workers.acting.evaluator import Evaluator

        cfg = cfg.settled()
        self.config, self._interrupted = cfg, False
        self._base = Path.cwd()  # of all paths, before an environment can change it
        prepare_filming(cfg)
        self.spec, self.agent, self.plan = assemble(cfg)
        self.shown = shown_to(cfg, self.spec)  # demonstrations
        boards.require(tensorboard=cfg.run.tensorboard, wandb=cfg.run.wandb)
        self._caller, self._shows = Caller(callbacks), progress
        self._began = time.perf_counter() if began is None else began
        self.resumed_at = 0.0  # seconds that a checkpoint brought along
        self._journal = Journal(cfg)
        self._driver: Any = None  # the topology's generator
        self._runtime: Any = None
        self._snapshot: PyTree | None = None
        self._run: Run | None = None
        self._resumption: Resumption | None = None  # until the first step after a checkpoint
        self._continues = False  # in the directory of a run that was there before
        restarts = cfg.run.env_restarts
        self._evaluator = Evaluator(
            self.agent, self._evaluation_pool, seed=cfg.run.seed + 1_000_003, env_restarts=restarts,
            wanted=lambda: not self._interrupted,
        )  # fmt: skip
        self.progress: Any = None
        self.returns = ReturnWindow(target=cfg.run.stop_return)
        self.eval_return_mean: float | None = None  # of the main policy
        self.eval_of_others: dict[str, float] = {}  # of the other policies of the job, by name
        self.best = BestPolicy()  # of all evaluations; what is asynchronous trains on before it is saved
        self.stopped_because: str | None = None
        self._hangs: envs.EnvironmentFailed | None = None
        self.on_hang: Callable[[envs.EnvironmentFailed], None] = self._note_hang  # from another thread
        self._watchdog: Watchdog | None = None
        self._ended_by_evaluation = False
        self.warnings: list[str] = []  # what was wrong with how it learned, said in the end
        self.seconds_to_target: float | None = None
        self.meter = Meter(self.plan, overlaps=cfg.topology.overlaps)
        self._written_result = False
        milestones = Milestones(cfg.run.milestones, cfg.num_updates)
        self._saver = Saver(self.best, keep=cfg.run.keep, tell=self.say, milestones=milestones)
        self._filming = Filming(cfg, self.agent, tell=self.say)
        self._saved_at = self._evaluated_at = 0
        self._done = (0, 0)  # steps and updates at the last row
        self._untold: list[Any] = []  # episodes that ended while it was drained for a checkpoint: the next progress tells them
        self._clock, self._updates_before = TrainingClock(), 0

    # ----------------------------------------------------------------------------------------------- driving

    def advance(self) -> Any:
        """Advance the topology by a step: at least one update, or a sign of life after half a second."""
        self._saver.poll()
        self._caller.checkpoints(self, self._saver)
        with self._resumption.restoring() if self._resumption else contextlib.nullcontext():
            if self._driver is None:
                self._start()
            progress = next(self._driver)
        if self._hangs is not None:
            raise self._hangs
        self.progress, self._untold = progress, []
        if self._resumption is not None and self._resumption.has_begun(progress):
            self._go_on(self._resumption)
        now = self.seconds
        self._tell_episodes(progress.finished, now)
        self.returns.add((episode.total_reward for episode in progress.finished), seconds=now)
        self.meter.add(now, progress)
        self._clock.look(now - self.resumed_at, progress, updates_before=self._updates_before)
        for incident in progress.incidents:
            self._journal.incident(incident)
        if self._resumption is None:  # else only a sign of life
            self._schedule(progress)
            self._caller.step(self)
        if self._resumption is None and self._journal.row_is_due(now, progress.env_steps):
            self._log(now)
        elif self._journal.display_is_due(now):
            self._journal.show(self.row())
        return progress

    def __iter__(self) -> Iterator[Any]:
        """Advance until the budget is spent or a goal is reached."""
        while self.stopped_because is None:
            yield self.advance()

    def _start(self) -> None:
        from rookery.topologies.job import Job, policies_of

        self._open_run()
        if self._shows is not False:
            self.show(progress=self._shows)
        self._runtime, options = open_runtime(self.config, self.plan), self.config.run
        self._watchdog = Watchdog(
            options.env_step_seconds, warn=self._journal.warn, give_up=lambda error: self.on_hang(error)
        )  # fmt: skip
        self._watchdog.start()
        job = Job(
            self.agent, self.spec, pool_factory(self.config, self.plan), self._runtime, options.seed, options.devices,
            env_restarts=options.env_restarts, env=self.config.env, env_options=self.config.env_options,
            learners=options.learner_processes, shown=self.shown,
            others={name: self.agent for name in policies_of(self.config.topology) if name != MAIN},
        )  # fmt: skip
        self._driver = self.config.topology.drive(job, self._snapshot)
        self._snapshot = None

    def _note_hang(self, error: envs.EnvironmentFailed) -> None:
        """Note the error, which the next `advance` raises: the thread that hangs is abandoned."""
        self._hangs = error

    def _schedule(self, progress: Any) -> None:
        """Evaluate, save and stop when it is time. Periods are counted in updates, so that a repeated run does the same."""
        options, updates = self.config.run, progress.updates
        planned = self.config.num_updates
        every = options.eval_every or (max(1, planned // 20) if options.stop_eval_return is not None else None)
        if every and updates - self._evaluated_at >= every:
            self._evaluated_at = updates
            with contextlib.suppress(Interrupted):
                self.evaluate()
        if self._goal_is_evaluated():  # first: a policy that was asked for is kept, also where the budget ends with it
            self.stopped_because = f"eval_return_mean reached {options.stop_eval_return:g}"
            self.seconds_to_target, self._ended_by_evaluation = round(self.seconds, 3), True
        elif progress.env_steps >= options.total_steps:
            self.stopped_because = f"trained for {options.total_steps:,} steps"
        elif options.total_updates is not None and updates >= options.total_updates:
            self.stopped_because = f"made {options.total_updates:,} updates"
        elif (over := self._clock.over(options.seconds, self.seconds, progress)) is not None:
            self.stopped_because = over
        elif options.stop_return is not None and self.returns.reached:
            self.stopped_because = f"return_mean reached {options.stop_return:g}"
            self.seconds_to_target = round(self.returns.seconds_to_target or self.seconds, 3)
        period = options.checkpoint_every or max(1, planned // 10)
        milestone = self._saver.comes_to_milestone(updates, since=self._saved_at)
        due = self._saver.is_due(updates - self._saved_at >= period or milestone)
        if progress.snapshot is not None and due and self.stopped_because is None:
            self._save(behind=True)
        if self.stopped_because is None:  # else `finish` makes the last one
            self._filming.after(progress, self.run.path)

    def _goal_is_evaluated(self) -> bool:
        goal, mean = self.config.run.stop_eval_return, self.eval_return_mean
        return goal is not None and mean is not None and mean >= goal

    def evaluate(self) -> Any:
        """Play whole greedy episodes with the newest parameters, on environments of their own; keep the best policy."""
        progress = self.progress
        evaluation = self._evaluator.evaluate(progress.params)
        self.eval_return_mean = evaluation.return_mean
        where = {"env_steps": progress.env_steps, "updates": progress.updates}
        self._journal.evaluation(evaluation.returns, evaluation.lengths, **where, seconds=self.seconds)
        others = {name: policy.params for name, policy in progress.policies.items() if name != MAIN}
        self.eval_of_others = {name: self._evaluator.evaluate(params).return_mean for name, params in others.items()}
        meta = meta_of(self.config, progress, self.seconds, self.spec)
        meta |= {"eval_return_mean": evaluation.return_mean, "eval_episodes": len(evaluation.returns)}
        if is_best := self.best.offer(progress.params, meta):
            self._saver.save_best(self._open_run())
        self._caller.evaluation(self, evaluation, is_best=is_best)
        return evaluation

    def _evaluate_kept(self, *, play: bool) -> None:
        """Set `eval_return_mean` to that of the policy which is kept; play: by an evaluation of its own."""
        if self.kept == LAST:
            if play:
                self.evaluate()
        elif play:  # not offered again: where environments are not repeatable, luck would add up
            self.eval_return_mean = self._evaluator.evaluate(self.best.params(self.agent)).return_mean
        else:
            self.eval_return_mean = self.best.eval_return_mean

    def tune(self, **values: float) -> None:
        """Change hyper-parameters of the main policy while the run goes on, from the next update on.

        Those that its algorithm names as `leaves` (learning_rate ...): nothing is compiled again, checkpoints hold them."""
        while self.progress is None or self.progress.snapshot is None:
            self.advance()
        if self.progress.tune is None:
            raise config.ConfigError(f"{type(self.config.topology).__name__} cannot change hyper-parameters of a running job")
        self.progress.tune(values)

    # ------------------------------------------------------------------------------------------- keeping

    @property
    def last_checkpoint(self) -> Path | None:
        """The last one written."""
        return self._saver.last

    def save(self) -> Path:
        """Write a checkpoint that training continues from; return its directory."""
        if self.progress is None:
            self.advance()
        while self.progress.snapshot is None or self._resumption is not None:
            self.advance()
        path = self._save()
        self._caller.checkpoints(self, self._saver)
        return path

    def rescue(self) -> None:
        """Save what is not saved yet, after an error that is not the run's own."""
        if self.progress.updates > self._saved_at:
            self.save()

    def _save(self, *, behind: bool = False) -> Path:
        """Save a checkpoint. behind: while training goes on, and a disk that fails is no error."""
        while True:
            with contextlib.suppress(Gone):  # with a shard, before it was written: the next snapshot is without that
                return self._write(self.progress.snapshot(), behind=behind)

    def _write(self, snapshot: PyTree, *, behind: bool) -> Path:
        own = {"returns": self.returns.snapshot(), "seconds": self.seconds, "evaluated_at": int(self._evaluated_at)}
        self.progress, self._untold = caught_up(self.progress, snapshot, self.agent)
        self._journal.flush()
        run, updates = self._open_run(), self.progress.updates
        tree = {"topology": snapshot, "trainer": own}
        contents = contents_of(tree, self.config, self.progress, self.spec, self.shown)
        self._saved_at = updates
        (self._saver.save_behind if behind else self._saver.save)(run, updates, contents)
        return checkpoint.path_of(run.checkpoints, updates)

    def restore(self, path: str | Path) -> None:
        """Continue from a checkpoint (or from a run's newest valid one); whatever was done so far is dropped."""
        self._saver.settle()
        self._stop_driver()
        run = Run.open(path, self._base / self.config.run.runs)
        directory = resumable(run)
        tree, meta = loaded_for(self.config, directory, self.shown)
        resumption = Resumption.of(directory, run, meta, self.config)
        with resumption.restoring():
            self._snapshot = tree["topology"]
            saved_params(self.agent, self._snapshot)  # what is learned fits, before anything is started
            self.returns.restore(tree["trainer"]["returns"])
            self.resumed_at = float(tree["trainer"]["seconds"])
            resumption = resumption.at(self._snapshot, told=self.returns.episodes)
            self._evaluated_at = int(tree["trainer"].get("evaluated_at", resumption.updates))
        self._resumption = resumption
        self._saved_at = self._updates_before = resumption.updates
        self._journal.begin_at(resumption.env_steps)
        self._began = time.perf_counter() - self.resumed_at
        self.meter = Meter(self.plan, overlaps=self.config.topology.overlaps, updates=resumption.updates)
        self.progress, self.stopped_because, self._ended_by_evaluation = None, None, False

    def continue_run(self, run: Run, directory: Path) -> None:
        """Continue in that run's directory, from one of its checkpoints: what was written after it is written again.

        Only when the first step has succeeded is anything there changed. The best policy stays what it was, also if it is
        younger than the checkpoint: it was evaluated, and it is there.
        """
        run.lock()
        self._run, self._continues = run, True
        self.restore(directory)
        self.best.read(run.checkpoints)

    def _go_on(self, resumption: Resumption) -> None:
        """Take over the run that is resumed, now that the first step after its checkpoint has succeeded."""
        if self._continues and self._run is not None:
            take_over(self._run, self.config, resumption)
        self._resumption = None
        if resumption.cut:
            what = f"the {resumption.cut} episodes that were being played were cut, new ones have begun"
            self._journal.warn(f"{self.config.env_name} cannot be saved: {what}")
        self._open_run()

    def _open_run(self) -> Run:
        if self._run is None:
            options, told = self.config.run, (self.config.to_dict(), config.command(self.config))
            self._run = Run.create(options.runs, options.run, *told, base=self._base)
            self._run.attach_log()
        if not self._waits_to_continue:
            self._journal.open(self._run)
        return self._run

    @property
    def _waits_to_continue(self) -> bool:
        """Whether the run is still as it was left, and not to be touched."""
        return self._continues and self._resumption is not None

    # ------------------------------------------------------------------------------------------- telling

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 training episodes; of several seeds, the mean of what each has."""
        each = of_seeds(self.progress.report if self.progress else {})
        return sum(each.values()) / len(each) if each else self.returns.return_mean

    @property
    def kept(self) -> str:
        """Which policy stands for the run: BEST where an evaluation ended it (and that policy is on disk), else LAST."""
        return BEST if self._ended_by_evaluation and self.best.is_written else LAST

    @functools.cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.agent)

    @property
    def run(self) -> Run:
        return self._open_run()

    @property
    def directory(self) -> str | None:
        """The run's, as it was asked for; None before there is one."""
        return str(self._run.shown) if self._run else None

    @property
    def draws(self) -> bool:
        """Does anybody see how it stands?"""
        return self._journal.draws

    def row(self) -> Row:
        """Report the state of the run, for the display and the metrics."""
        return row_of(self, since=self._done)

    def _log(self, now: float) -> None:
        row = self.row()
        self._done = (row.env_steps, row.updates)
        self._journal.row(row, {"env_failures": self.progress.env_failures}, self.progress.workers)
        self._journal.show(row)

    def log(self, values: Mapping[str, float]) -> None:
        """Put numbers of yours, `{"my/number": 1.0}`, into the rows from now on: metrics.jsonl and the boards."""
        self._journal.log(values)

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of `rookery train --json`."""
        return metrics_of(self)

    def policy(self) -> Any:
        """Return the policy that is kept, the newest while training goes on: `action, memory = policy(observation, memory)`."""
        params = self.best.params(self.agent) if self.kept == BEST else self.progress.params
        return policy_of(self.config, self.agent, self.spec, params, env_steps=self.progress.env_steps)

    def finish(self, status: str = "done", *, evaluate: bool = True) -> Result:
        """Save, evaluate, write the result and close. What is reported and returned is what the kept checkpoint holds."""
        self._save_last()
        self._tell_episodes(self._untold, self.seconds)
        if not self.best.is_written:  # the disk may be well again
            self._saver.save_best(self.run)
            self._saver.settle()
        self.progress = dataclasses.replace(self.progress, report=self.progress.report | self.progress.inspect())
        self._log(self.seconds)
        self.warnings = self._judged()
        trained = self.metrics()  # before the evaluation: it is not part of the training time
        with contextlib.suppress(Interrupted):
            self._evaluate_kept(play=evaluate and self.config.run.eval_episodes > 0)
        trained |= {"eval_return_mean": self.eval_return_mean, "eval_return_best": self.best.eval_return_mean}
        self._write_result(status, trained)
        if not self.run.is_there:
            raise checkpoint.StorageError(self.last_good())
        self._filming.finish(self.progress, self.run.path)
        result = Result(str(self.run.path), status, self.stopped_because or "", trained, self.policy(), self.kept)
        self.close()
        self._caller.end(self, result)
        return result

    def _save_last(self) -> None:
        try:
            insist(self.save, self.say)
        except checkpoint.StorageError as error:
            raise checkpoint.StorageError(f"{error} {self.last_good(go_on=True)}") from error

    def _judged(self) -> list[str]:
        """Write warnings on how the run learned."""
        past = health.History(self.run.metrics.tail(), self.returns.first_mean, self.return_mean)
        return health.warnings(past, self.config.fitted)

    def fail(self, reason: str) -> None:
        """Record in the run's directory why it failed; the last checkpoint stays as it is."""
        self.stopped_because = reason
        self._write_result("failed", self.metrics() if self.progress else {})

    def _write_result(self, status: str, metrics: dict[str, Any]) -> None:
        self._saver.settle()
        if self._run is not None and not self._written_result and not self._waits_to_continue:
            more = {"seed": self.config.run.seed, "reason": self.stopped_because, "policy_lag_max": self.meter.total.lag_max}
            told = {"policy": self.kept, "warnings": self.warnings}
            self._written_result = self._run.write_result(status, metrics | more | told)

    def last_good(self, *, go_on: bool = False) -> str:
        """Write a sentence on the checkpoint that is left; go_on: and the command that continues from it."""
        self._saver.wait()
        return last_good(self.run, go_on=go_on)

    def interrupt(self, name: str) -> bool:
        """Ask for an end, from any thread: steps and updates under way are finished, evaluations are not.

        False: nothing was trained yet that could be saved."""
        self._interrupted = True
        self.stopped_because = self.stopped_because or name
        return self.progress is not None

    def leave(self, name: str) -> str:
        """Record that there was no time to finish; return a sentence on what is left. Called by another thread than the run's.

        A run that was to be resumed, and did not come to it, stays as it was."""
        began = self.progress is not None
        self.stopped_because = f"{name}, and no time to save" if began else name
        if began or not self.resumed_at:
            self._write_result("stopped", self.metrics() if began else {})
        self._journal.display.close()
        why = "what was under way did not end in time" if began else "nothing was trained yet"
        return f"{why}. {self.last_good(go_on=True)}"

    def show(self, *, json: bool = False, progress: bool | None = True) -> None:
        """Draw the progress from now on: in place in a terminal or a notebook, else as lines; nothing with `json`.

        progress: None: in place or not at all."""
        self._journal.draw(self._open_run(), self.num_parameters, wanted=False if json else progress)
        self.say("  ".join(f"{name}: {value}" for name, value in self.plan.facts.items()))

    def say(self, text: str) -> None:
        """Show a line of its own in the display, where there is one."""
        self._journal.say(text)

    def _tell_episodes(self, finished: list[Any], seconds: float) -> None:
        where = {"env_steps": self.progress.env_steps, "updates": self.progress.updates, "seconds": seconds}
        self._journal.episodes(self.returns.episodes, finished, **where)

    def close(self) -> None:
        """Stop every worker and close the run's files. A run that nobody finished counts as stopped."""
        self._journal.display.close()
        if self.progress is not None:
            self._write_result("stopped", self.metrics())
        self._stop_driver()
        self._evaluator.close()
        self._filming.close()
        self._saver.close()
        self._journal.close()
        if self._run is not None:
            self._run.close()

    def _stop_driver(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        if self._runtime is not None:
            self._runtime.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")
        elif error is not None:
            self.stopped_because = type(error).__name__
        self.close()

    def _evaluation_pool(self) -> EnvPool:
        return pool_factory(self.config)(self.config.run.eval_episodes)
