"""Locks of memory that threads share, in a forked process."""

import os
import signal
import threading

import pytest

from loaderx.locks import new_lock


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_lock_that_a_thread_holds_is_free_in_a_forked_process():
    lock, is_held, release = new_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if child == 0:  # must not return into the test runner
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        os._exit(0 if lock.acquire() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert lock.locked()
    release.set()
    thread.join()
