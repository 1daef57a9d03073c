"""Work on files in a process that is killed before a given call."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
import warnings

from loaderx.sources.native import writer as native_writer

_CALLS = ("rename", "replace", "link", "unlink", "fsync", "makedirs", "ftruncate")


def stopped_at(event, work, folder):
    """Runs ``work(folder)`` in a fork that is killed before the event of this number.

    Events are calls that change what is on disk; of a write, half is done.  True if it was killed.
    """

    def counted_work():
        _count_calls(event)
        work(folder)

    return killed_in_fork(counted_work)


def killed_in_fork(work):
    """Runs ``work()`` in a fork, which may kill itself.  True if it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks
        child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL)
        return status != 0
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(50)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _count_calls(event):
    """Kills this process before the event of this number."""
    left, write = [event], os.write

    def is_over():
        left[0] -= 1
        return left[0] < 0

    def counted(function):
        def call(*args, **named):
            if is_over():
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **named)

        return call

    def half_written(descriptor, data):
        if is_over():
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))
    os.write = half_written
    shutil.rmtree = counted(shutil.rmtree)
    native_writer.PartWriter.append = counted(native_writer.PartWriter.append)
