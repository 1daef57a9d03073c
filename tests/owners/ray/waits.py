"""Counts, in tasks, how long a consumer waits for a task whose worker is lost or stands still."""

from __future__ import annotations

from collections import Counter, defaultdict

from loaderx.engines.elsewhere.dispatch import OVERTAKEN, Dispatch


class Waits:
    """What one other worker did, at most, while the consumer waited for a task; of all streams."""

    def __init__(self):
        self.faults = 0
        self.until_given = 0  # later tasks, before this one was sent to another worker
        self.until_done = Counter()  # later tasks, before this one was done: how many such tasks

    def __str__(self):
        counts = ", ".join(f"{later}: {count}" for later, count in sorted(self.until_done.items()))
        return (
            f"{self.faults} faults, {self.until_done.total()} tasks sent to another worker. While "
            f"the consumer waited for one of them, no other worker did more than "
            f"{self.until_given} later tasks before it was sent. Later tasks of another worker "
            f"before it was done, and how often: {counts}."
        )


WAITS = Waits()


class NotedLine:
    """A line that notes the turns of what goes over it."""

    def __init__(self, line, turns):
        self._line, self._turns = line, turns

    def send(self, job):
        self._turns[job.number].append(job.turn)
        self._line.send(job)


class CountedDispatch(Dispatch):
    """A dispatch that counts."""

    def __init__(self):
        super().__init__()
        self.turns = defaultdict(list)  # of each task
        self.later = defaultdict(Counter)  # for each task and worker: since the task was first sent
        self.since = defaultdict(Counter)  # for each turn and worker: since it was sent last

    def join(self, hand):
        hand.line = NotedLine(hand.line, self.turns)
        super().join(hand)

    def answer(self, hand, number, outcome):
        answered = hand.under_way.get(number)
        if answered is not None:
            for job in list(self.awaited):
                if not job.is_done and job is not answered.job:
                    self._count(hand, answered.turn, job)
            if not answered.job.is_done and len(self.turns[number]) > 1:
                WAITS.until_done[max(self.later[number].values(), default=0)] += 1
        super().answer(hand, number, outcome)

    def _count(self, hand, turn, job):
        turns = self.turns[job.number]
        if turns and turn > turns[0]:
            self.later[job.number][hand] += 1
        if turns and turn > turns[-1] and hand not in job.hands and not job.is_made_alone:
            self.since[turns[-1]][hand] += 1
            WAITS.until_given = max(WAITS.until_given, self.since[turns[-1]][hand])


def check():
    """After as many later tasks of another worker, it has been sent the task too."""
    assert WAITS.until_given <= OVERTAKEN, WAITS
