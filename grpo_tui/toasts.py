"""Which notifications are on the screen: a few at once, none twice."""

from __future__ import annotations

from textual.notifications import Notification, Notifications

MOST = 3


def make_room(shown: Notifications, new: Notification) -> bool:
    """Take what a new notification replaces off the screen; returns False if its text is there already.

    A text that has less than half of its time left is shown anew.
    """
    for old in list(shown):
        if (old.title, old.message) == (new.title, new.message):
            if old.time_left > old.timeout / 2:
                return False
            del shown[old]
    while len(shown) >= MOST:
        oldest = list(shown)
        del shown[next((old for old in oldest if old.severity != "error"), oldest[0])]
    return True
