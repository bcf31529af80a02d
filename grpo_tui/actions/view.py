"""Actions on the home screen: filter, zoom, back, log tabs, smoothing."""

from __future__ import annotations

from grpo_tui.actions.action import Face


def show_filter(face: Face) -> None:
    face.home.show_filter()


def zoom(face: Face) -> None:
    face.home.zoom()


def back(face: Face) -> None:
    face.home.back()


def next_log(face: Face) -> None:
    face.home.show_next_log()


def smooth(face: Face) -> None:
    face.receipt("smoothed curves" if face.home.toggle_smoothing() else "raw curves")
