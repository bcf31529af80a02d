"""Which notifications are on the screen."""

from __future__ import annotations

from textual.notifications import Notification, Notifications
from textual.widgets._toast import Toast

from grpo_tui.app import MOST, make_room
from tests.tui.conftest import Session, Start


def toasts(session: Session) -> list[str]:
    return [toast._notification.message for toast in session.app.screen.query(Toast)]


async def test_a_text_is_shown_once(start: Start) -> None:
    async with start(wait="87/200") as session:
        for _ in range(20):
            session.app.notify("run_1 is running; stop it first", timeout=1000.0)
        session.app.notify("the last one", timeout=1000.0)
        await session.until(lambda: toasts(session) == ["run_1 is running; stop it first", "the last one"])


async def test_a_few_notifications_are_shown_at_once(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.notify("broken", severity="error", timeout=1000.0)
        for number in range(9):
            session.app.notify(f"note {number}", timeout=1000.0)
        await session.until(lambda: toasts(session) == ["broken", "note 7", "note 8"])


def test_a_text_that_is_about_to_go_is_shown_anew() -> None:
    shown = Notifications()
    old = Notification("same", timeout=1000.0)
    shown.add(old)
    assert not make_room(shown, Notification("same", timeout=1000.0))
    assert make_room(shown, Notification("same", title="of another"))
    old.raised_at -= 600.0
    assert make_room(shown, Notification("same"))
    assert old not in shown


def test_errors_stay_longest() -> None:
    shown = Notifications()
    for number in range(MOST):
        shown.add(Notification(str(number), severity="error", timeout=1000.0))
    assert make_room(shown, Notification("new"))
    assert [one.message for one in shown] == ["1", "2"]
