"""Stands for the package `ray`: actors are objects of this process, and calls run in threads."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from loaderx.engines.elsewhere.direct import Listener


class ActorError(Exception):
    """What Ray raises for calls of an actor."""


class FakeRay:
    """A cluster of this process alone."""

    def __init__(self):
        self.listeners = []  # of all actors, which end with their processes in truth
        self.failures = []  # of the next calls
        unavailable, died = (type(name, (ActorError,), {}) for name in ("Unavailable", "Died"))
        self.exceptions = SimpleNamespace(ActorUnavailableError=unavailable, ActorDiedError=died)
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="127.0.0.1:6379")

    def nodes(self):
        return [{"NodeManagerAddress": "127.0.0.1", "Alive": True}]

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        return value

    def get(self, reference):
        return reference.result()

    def wait(self, references, timeout):
        done, waiting = concurrent.futures.wait(references, timeout)
        return list(done), list(waiting)

    def remote(self, cls):
        def options(*, max_concurrency, **_):
            return SimpleNamespace(
                remote=lambda *arguments: FakeActor(self, cls(*arguments), max_concurrency)
            )

        return SimpleNamespace(options=options)

    def kill(self, actor):
        actor.calls.shutdown(wait=False, cancel_futures=True)
        for listener in self.listeners:
            if listener.actor is actor.instance:
                listener.close()


class FakeActor:
    """A handle of an actor."""

    def __init__(self, ray, instance, threads):
        self.ray, self.instance, self.calls = ray, instance, ThreadPoolExecutor(threads)

    def __getattr__(self, name):
        return SimpleNamespace(
            remote=lambda *arguments: self.calls.submit(self.call, name, arguments)
        )

    def call(self, name, arguments):
        if self.ray.failures:
            raise self.ray.failures.pop(0)
        return getattr(self.instance, name)(*arguments)


def listener_for(ray):
    """The listener of actors, which is closed with its actor."""

    class FakeListener(Listener):
        def __init__(self, host, key, make, *rest):
            self.actor = make.__self__
            ray.listeners.append(self)
            super().__init__(host, key, make, *rest)

    return FakeListener
