"""Which worker makes which task, with workers that come, go, and stand still."""

from __future__ import annotations

import contextlib
import threading

from hypothesis import given
from hypothesis import strategies as st

from loaderx.engines.elsewhere import dispatch as module
from loaderx.engines.elsewhere.dispatch import OVERTAKEN, Dispatch, Hand


class Line:
    """Notes what it is sent."""

    def __init__(self):
        self.sent = []
        self.is_broken = False

    def send(self, job):
        if self.is_broken:
            raise OSError("broken")
        self.sent.append(job.number)


@contextlib.contextmanager
def running():
    dispatch = Dispatch()
    thread = threading.Thread(target=dispatch.run_sender, name="loaderx-send", daemon=True)
    thread.start()
    try:
        yield dispatch
    finally:
        dispatch.stop()
        thread.join(30)


def joined(dispatch, depth=2):
    hand = Hand(Line(), depth)
    dispatch.join(hand)
    return hand


def finish(dispatch, hand, number):
    dispatch.answer(hand, number, (f"element {number}", None))


def test_tasks_go_out_in_order_and_no_more_than_a_hand_may_have():
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(5)]
    one, two = joined(dispatch), joined(dispatch)
    dispatch.send()
    assert (one.line.sent, two.line.sent) == ([1, 3], [2, 4])
    finish(dispatch, two, 2)
    assert two.line.sent == [2, 4, 5]
    assert [job.is_done for job in jobs] == [False, True, False, False, False]
    assert jobs[1].outcome == ("element 2", None)


def test_no_hand_has_two_tasks_while_another_has_none():
    """Also with fewer tasks under way than one hand may have, as a short window makes them."""
    dispatch = Dispatch()
    one, two, three = joined(dispatch, 3), joined(dispatch, 1), joined(dispatch, 3)
    for step in range(3):
        dispatch.submit((step,))
    dispatch.send()
    assert (one.line.sent, two.line.sent, three.line.sent) == ([1], [2], [3])
    finish(dispatch, one, 1)
    for step in range(3, 6):
        dispatch.submit((step,))
    dispatch.send()
    assert (one.line.sent, two.line.sent, three.line.sent) == ([1, 4, 5], [2], [3, 6])


def test_the_tasks_of_a_lost_hand_are_next():
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(6)]
    one, two = joined(dispatch), joined(dispatch)
    dispatch.send()
    assert dispatch.leave(one) == [jobs[0], jobs[2]]
    assert dispatch.leave(one) == []
    finish(dispatch, two, 2)
    finish(dispatch, two, 4)
    assert two.line.sent == [2, 4, 1, 3]


def test_the_oldest_of_all_lost_tasks_is_next():
    """However many hands are lost at once, and in whatever order."""
    for order in ((0, 1), (1, 0)):
        dispatch = Dispatch()
        for step in range(7):
            dispatch.submit((step,))
        *lost, left = joined(dispatch), joined(dispatch), joined(dispatch)
        dispatch.send()
        for number in order:
            dispatch.leave(lost[number])
        for number in (3, 6, 1, 2):
            finish(dispatch, left, number)
        assert left.line.sent == [3, 6, 1, 2, 4, 5]


def test_a_task_that_two_hands_were_lost_with_is_made_alone():
    """Else one that kills its workers would take others with it, and they would be blamed."""
    dispatch = Dispatch()
    for step in range(8):
        dispatch.submit((step,))
    for _ in range(2):
        hand = joined(dispatch, 3)
        dispatch.send()
        assert hand.line.sent == [1, 2, 3]
        dispatch.leave(hand)
    hand = joined(dispatch, 3)
    dispatch.send()
    for number in range(1, 4):
        assert hand.line.sent == list(range(1, number + 1))
        finish(dispatch, hand, number)
    assert hand.line.sent == [1, 2, 3, 4, 5, 6]


def test_a_hand_that_is_busy_makes_such_a_task_when_it_has_done_the_others():
    dispatch = Dispatch()
    for step in range(5):
        dispatch.submit((step,))
    first, busy = joined(dispatch, 1), joined(dispatch, 2)
    dispatch.send()
    dispatch.leave(first)
    second = joined(dispatch, 1)
    dispatch.send()
    assert (second.line.sent, busy.line.sent) == ([1], [2, 3])
    dispatch.leave(second)
    finish(dispatch, busy, 2)
    assert busy.line.sent == [2, 3]
    finish(dispatch, busy, 3)
    assert busy.line.sent == [2, 3, 1]
    finish(dispatch, busy, 1)
    assert busy.line.sent == [2, 3, 1, 4, 5]


def test_a_hand_that_cannot_be_sent_to_is_lost():
    dispatch = Dispatch()
    for step in range(3):
        dispatch.submit((step,))
    one, two = joined(dispatch), joined(dispatch)
    one.line.is_broken = True
    dispatch.send()
    assert two.line.sent == [1, 2]


def test_cancelled_tasks_are_not_sent():
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(3)]
    jobs[0].finish()
    hand = joined(dispatch)
    dispatch.send()
    assert hand.line.sent == [2, 3]


def test_a_task_that_stands_still_is_given_to_a_hand_that_has_overtaken_it():
    """After two tasks that were sent later, and only while it is waited for."""
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(12)]
    still, other = joined(dispatch, 1), joined(dispatch, 1)
    dispatch.send()
    for number in (2, 3, 4):
        finish(dispatch, other, number)
    assert other.line.sent == [2, 3, 4, 5], "nothing is made twice before it is waited for"
    dispatch.awaited[jobs[0]] = None
    finish(dispatch, other, 5)
    assert other.line.sent[-1] == 1
    finish(dispatch, other, 1)
    assert jobs[0].outcome == ("element 1", None)
    assert other.line.sent[-1] == 6
    finish(dispatch, still, 1)  # the second answer is ignored
    assert jobs[0].outcome == ("element 1", None)


def test_a_task_that_is_made_alone_and_stands_still_is_given_to_a_hand_with_nothing_to_do():
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(6)]
    for _ in range(2):
        hand = joined(dispatch, 1)
        dispatch.send()
        dispatch.leave(hand)
    still, other = joined(dispatch, 1), joined(dispatch, 2)
    dispatch.send()
    assert (still.line.sent, other.line.sent) == ([1], [2, 3])
    dispatch.awaited[jobs[0]] = None
    for number in range(2, 7):
        finish(dispatch, other, number)
    assert other.line.sent == [2, 3, 4, 5, 6, 1]


def test_answers_out_of_order_count_as_well():
    """A hand with threads may answer a task that it was sent earlier in between."""
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(12)]
    other = joined(dispatch, 3)
    dispatch.send()
    still = joined(dispatch, 1)
    dispatch.send()
    assert (other.line.sent, still.line.sent) == ([1, 2, 3], [4])
    dispatch.awaited[jobs[3]] = None
    for number in (1, 2, 5, 3):
        finish(dispatch, other, number)
    assert 4 not in other.line.sent
    finish(dispatch, other, 6)
    assert other.line.sent[-1] == 4


def test_a_task_goes_on_to_a_third_hand_if_the_second_stands_still_too():
    """After two more tasks."""
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(30)]
    first, second, third = [joined(dispatch, 1) for _ in range(3)]
    dispatch.send()
    dispatch.awaited[jobs[0]] = None
    for number in (2, 4):
        finish(dispatch, second, number)
    assert second.line.sent == [2, 4, 1]
    for _ in range(OVERTAKEN):
        assert 1 not in third.line.sent
        finish(dispatch, third, third.line.sent[-1])
    finish(dispatch, third, third.line.sent[-1])
    assert third.line.sent[-1] == 1
    finish(dispatch, third, 1)
    assert jobs[0].outcome == ("element 1", None)
    assert first.line.sent == [1]


def test_a_new_hand_with_nothing_else_to_do_gets_a_task_that_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "LONG_S", 0.0)
    dispatch = Dispatch()
    job = dispatch.submit((0,))
    joined(dispatch, 1)
    dispatch.send()
    dispatch.awaited[job] = None
    other = joined(dispatch, 1)
    while not other.line.sent:
        dispatch.send()
    finish(dispatch, other, 1)
    assert job.outcome == ("element 1", None)


def test_an_idle_hand_gets_a_task_that_is_waited_for(monkeypatch):
    """With a short window the others have nothing else to do."""
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    with running() as dispatch:
        first, _ = dispatch.submit((0,)), dispatch.submit((1,))
        still, other = Hand(Line(), 1), Hand(Line(), 1)
        dispatch.join(still)
        while not still.line.sent:
            pass
        dispatch.join(other)
        while not other.line.sent:
            pass
        finish(dispatch, other, 2)
        waiting = threading.Thread(target=dispatch.wait, args=(first, lambda: None))
        waiting.start()
        while other.line.sent[-1] != 1:
            dispatch.send()
        finish(dispatch, other, 1)
        waiting.join(30)
        assert first.outcome == ("element 1", None)
        assert not dispatch.awaited


def test_stopping_ends_all_that_wait():
    with running() as dispatch:
        joined(dispatch, 1)
        jobs = [dispatch.submit((step,)) for step in range(3)]
        error = ValueError("no workers")
        dispatch.stop(error)
        jobs.append(dispatch.submit((9,)))
        for job in jobs:
            dispatch.wait(job, lambda: None)
        assert {job.outcome for job in jobs} == {(None, error)}


def test_a_task_on_its_way_to_a_hand_when_all_is_stopped_is_ended():
    class Late(Hand):
        def __hash__(self):
            """Called when the hand gets a task."""
            dispatch.stop()
            return id(self)

        __eq__ = object.__eq__

    dispatch = Dispatch()
    job = dispatch.submit((0,))
    dispatch.join(Late(Line(), 1))
    dispatch.send()
    dispatch.wait(job, lambda: None)
    assert (job.is_done, job.outcome) == (True, None)


@given(st.data())
def test_every_task_is_answered_whatever_hands_do(data):
    dispatch = Dispatch()
    jobs = [dispatch.submit((step,)) for step in range(data.draw(st.integers(1, 12)))]
    hands = [joined(dispatch, data.draw(st.integers(1, 3)))]
    for _ in range(200):
        dispatch.send()
        if all(job.is_done for job in jobs):
            break
        dispatch.awaited = dict.fromkeys(data.draw(st.sampled_from([jobs, jobs[:1], []])))
        busy = [hand for hand in hands if hand.under_way]
        does = data.draw(st.sampled_from(["answer", "answer", "leave", "join"]))
        if does == "join" or not busy:
            hands.append(joined(dispatch, data.draw(st.integers(1, 3))))
            continue
        hand = data.draw(st.sampled_from(busy))
        if does == "leave":
            dispatch.leave(hand)
            hands.remove(hand)
        else:
            finish(dispatch, hand, data.draw(st.sampled_from(sorted(hand.under_way))))
    while not all(job.is_done for job in jobs):
        hands.append(joined(dispatch, len(jobs)))
        dispatch.send()
        for hand in hands:
            for number in list(hand.under_way):
                finish(dispatch, hand, number)
    assert [job.outcome for job in jobs] == [(f"element {job.number}", None) for job in jobs]
