"""What a worker raised in another process, in a form that travels whatever its constructor wants."""

from __future__ import annotations

import traceback


class RemoteError(Exception):
    """The class, args, state and traceback of an exception, in a form that can be pickled."""

    def unpacked(self, where: str) -> BaseException:
        kind, args, state, trace = self.args
        error = kind.__new__(kind)
        error.args = args
        error.__dict__.update(state)
        error.add_note(f"in {where}:\n{trace}")
        return error


def remote_error(error: BaseException) -> RemoteError:
    return RemoteError(type(error), error.args, vars(error), "".join(traceback.format_exception(error)))
