"""When a Trainer calls the functions of its user (rookery/run/callbacks.py), and what becomes of a run where one raises."""

from __future__ import annotations

import contextlib
from typing import Any

from rookery.run import checkpoint
from rookery.run.callbacks import CallbackError, Callbacks, CheckpointEvent, EndEvent, EvaluationEvent, StepEvent
from rookery.run.saving import Saver


class Caller:
    """One that answers with STOP ends the run as a goal that is reached does; one that raises ends it, after a checkpoint."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._seen = (0, 0)  # steps and updates at the last `on_step`

    def step(self, trainer: Any) -> None:
        """Call `on_step`, unless the last step was only a sign of life."""
        progress = trainer.progress
        before, self._seen = self._seen, (progress.env_steps, progress.updates)
        if before != self._seen and self._callbacks.on_step is not None:
            self._call("on_step", StepEvent(trainer, progress))

    def evaluation(self, trainer: Any, evaluation: Any, *, is_best: bool) -> None:
        """Call `on_evaluation` with what an Evaluator gave for the newest parameters."""
        where = {"env_steps": trainer.progress.env_steps, "updates": trainer.progress.updates}
        returns, lengths = tuple(evaluation.returns), tuple(evaluation.lengths)
        self._call("on_evaluation", EvaluationEvent(trainer, **where, returns=returns, lengths=lengths, is_best=is_best))

    def checkpoints(self, trainer: Any, saver: Saver) -> None:
        """Call `on_checkpoint` for those that have come to lie on disk since the last time."""
        written, saver.written = saver.written, []
        for path in written:
            self._call("on_checkpoint", CheckpointEvent(trainer, path, checkpoint.updates_of(path)))

    def end(self, trainer: Any, result: Any) -> None:
        self._call("on_end", EndEvent(trainer, result))

    def _call(self, name: str, event: Any) -> None:
        trainer = event.trainer
        try:
            reason = self._callbacks.call(name, event)
        except CallbackError as error:
            self._callbacks = Callbacks()  # what is done from here on is not theirs to see
            with contextlib.suppress(Exception):  # the error to tell is the one that there was
                trainer.rescue()
            raise CallbackError(f"{error} {trainer.last_good(go_on=True)}") from error.__cause__
        trainer.stopped_because = trainer.stopped_because or reason
