"""A report opened in a browser: it works, it is readable, and what a run wrote does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from grpo_train.report.html import to_html
from grpo_train.report.page import lay_out
from grpo_train.report.report import make_report
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import metric_text
from tests.support.browser import Browser, needs_chromium
from tests.support.engine import rows

pytestmark = needs_chromium

HOSTILE = '</pre></script><script>window.owned=1</script><img src="http://127.0.0.1:9/x" onerror="window.owned=1">'
OUTPUTS = '[...document.querySelectorAll("figure[data-chart] output")].map(each => each.textContent)'
SHOWN = """[...document.querySelectorAll("figure[data-chart]")].filter(each => each.querySelector(".line, .dot"))
.map(each => each.querySelector(".cross").getAttribute("visibility"))"""
CONTRASTS = """
[...document.querySelectorAll("h1, p, dt, dd, th, td, pre, figcaption *, svg text, summary, footer")].map(each => {
  const levels = color => color.match(/[0-9.]+/g).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const style = getComputedStyle(each);
  let behind = each;
  while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const [one, other] = [each instanceof SVGElement ? style.fill : style.color, getComputedStyle(behind).backgroundColor]
    .map(color => light(levels(color))).sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
}).reduce((a, b) => Math.min(a, b))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    try:
        yield found
    finally:
        found.close()


def write(root: Path, folder: Path, *names: str) -> Path:
    """The HTML file of a report."""
    file = folder / "report.html"
    file.write_text(to_html(lay_out(make_report(root, names, 2.49))))
    return file


def test_crosshair_shows_the_logged_values(two_runs: Path, tmp_path: Path, browser: Browser) -> None:
    browser.open(write(two_runs, tmp_path, "first"))
    resting = browser.run(OUTPUTS)
    logged = rows(RunDir(two_runs / "training_runs" / "first"))
    browser.run('document.querySelector("figure").focus()')
    for row in logged:
        browser.press("ArrowRight")
        assert browser.run(OUTPUTS)[0] == f"step {row['step']}: {metric_text('reward', row['reward'])}"
    assert set(browser.run(SHOWN)) == {"visible"}
    browser.press("Escape")
    assert browser.run(OUTPUTS) == resting
    assert set(browser.run(SHOWN)) == {"hidden"}


def test_crosshair_follows_the_pointer(two_runs: Path, tmp_path: Path, browser: Browser) -> None:
    browser.open(write(two_runs, tmp_path, "first", "second"))
    box = browser.run(
        '(b => [b.left, b.top, b.width, b.height])(document.querySelector("svg").getBoundingClientRect())'
    )
    left, top, width, height = box
    browser.move(left + width * 0.2, top + height / 2)
    assert browser.run(OUTPUTS)[0].startswith("step 1: A\xa0")
    browser.move(left + width * 0.9, top + height / 2)
    assert browser.run(OUTPUTS)[0].startswith("step 2: A\xa0")
    assert " B\xa0" in browser.run(OUTPUTS)[0]


def test_hostile_texts_do_nothing(first: RunDir, tmp_path: Path, browser: Browser) -> None:
    config = yaml.safe_load(first.config_file.read_text())
    config["task"]["system_prompt"] = HOSTILE
    first.config_file.write_text(yaml.safe_dump(config))
    for name, keys in (("rollouts.jsonl", ("prompt", "completion", "answer", "reason")), ("train_log.jsonl", ())):
        changed = [{**row, **dict.fromkeys(keys, HOSTILE)} for row in rows(first, name)]
        if name == "train_log.jsonl":
            health = [{"level": HOSTILE, "code": HOSTILE, "message": HOSTILE}]
            changed = [{**row, HOSTILE: row["step"], "health": health} for row in changed]
        (first.logs / name).write_text("".join(json.dumps(row) + "\n" for row in changed))
    browser.open(write(first.root, tmp_path, "first"))
    browser.run('document.querySelectorAll("details").forEach(each => each.open = true)')
    browser.run('document.querySelector("figure").focus()')
    browser.press("ArrowRight")
    assert browser.run("window.owned") is None
    assert browser.run('document.querySelectorAll("img, iframe, script").length') == 2  # our data and our script
    assert len(browser.requests()) == 1  # the file itself
    assert browser.complaints() == []
    assert browser.run(f"document.body.textContent.includes({json.dumps(HOSTILE)})")


@pytest.mark.parametrize("width", [1200, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_readable(two_runs: Path, tmp_path: Path, browser: Browser, width: int, scheme: str) -> None:
    for names in (["first"], ["first", "second"]):
        browser.open(write(two_runs, tmp_path, *names), width, scheme)
        browser.run('document.querySelectorAll("details").forEach(each => each.open = true)')
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CONTRASTS) >= 4.5
        assert browser.complaints() == []
        assert len(browser.requests()) == 1


def test_a_print_shows_what_is_folded(two_runs: Path, tmp_path: Path, browser: Browser) -> None:
    """And not the hint on what the pointer does."""
    browser.open(write(two_runs, tmp_path, "first"))
    shown = """(query => [...document.querySelectorAll(query)].every(each => each.checkVisibility(
{contentVisibilityAuto: true}) && each.getBoundingClientRect().height > 0))"""
    assert (browser.run(f"{shown}('details table')"), browser.run(f"{shown}('.hint')")) == (False, True)
    browser.emulate_print()
    assert (browser.run(f"{shown}('details table')"), browser.run(f"{shown}('.hint')")) == (True, False)
