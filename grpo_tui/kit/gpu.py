"""The GPUs of the box, one line each, or a note that it has none."""

from __future__ import annotations

from typing import Any

from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_tui.box.formatting import bar, gibibytes, one_line
from grpo_tui.box.gpus import IDLE_TOLD_S, unlisted
from grpo_tui.kit.panel import Panel, from_markup, toned
from remote.protocol.rows import UNREADABLE

GPUS_SHOWN = 16
PROCESSES_SHOWN = 16
"""Of a GPU."""


class GpuPanel(Panel):
    """Memory, utilization, power, temperature and the runs of each GPU."""

    def state(self) -> object:
        idle = tuple(self._idle(gpu) for gpu in self.store.gpus or ())
        return (self.store.versions["gpu"], self.store.versions["link"], self.size, self.app.theme, idle)

    def _idle(self, gpu: dict[str, Any]) -> str:
        """Since when a GPU is idle, once that is long enough to point out; else ""."""
        index = gpu.get("index")
        if index is None or not gpu.get("free"):
            return ""
        store = self.store
        seconds = self.app.history.idle_for(int(index), store.now())
        return f"▲ idle {duration(seconds)}" if seconds >= IDLE_TOLD_S else ""

    def refresh_titles(self) -> None:
        gpus = self.store.gpus or []
        names = {gpu.get("name", "").removeprefix("NVIDIA ") for gpu in gpus[:GPUS_SHOWN] if UNREADABLE not in gpu}
        count = f"{len(gpus)}× " if len(gpus) > 1 else ""
        title = Content("gpu")
        if names:
            title += from_markup(" [$text-muted]$names[/]", names=count + " · ".join(sorted(names)))
        stale = self.store.topic_problem("gpu")
        self.set_titles(title, toned(self.store.gpu_freshness()) if gpus or stale else "")

    def lines_wanted(self) -> int:
        """Rows of content."""
        return max(1, min(GPUS_SHOWN, len(self.store.gpus or ())))

    def render(self) -> Content:
        gpus = self.store.gpus
        if gpus is None:
            problem = self.store.topic_problem("gpu")
            text, tone = (f"? {problem}", "$error") if problem else ("no samples yet", "$text-muted")
            return from_markup(f"[{tone}]$text[/]", text=text)
        if not gpus:
            host = self.store.host or {}
            cores = host.get("cpu_count")
            device = f"runs use {cores} CPU cores" if cores else "runs use the CPU"
            note = self.store.gpu_note or "no GPU on this box"
            return from_markup("[$text-muted]$note · $device[/]", note=note, device=device)
        return Content("\n").join(self._line(gpu, self.size.width) for gpu in gpus[:GPUS_SHOWN])

    def _line(self, gpu: dict[str, Any], width: int) -> Content:
        if reason := gpu.get(UNREADABLE):
            return from_markup(
                "[bold]$name[/] [$warning]unreadable: $reason[/]", name=gpu["name"], reason=one_line(reason)
            ).truncate(max(1, width), ellipsis=True)
        if problem := gpu.get("problem"):
            text = " · ".join(filter(None, [str(gpu.get("name") or ""), one_line(problem)]))
            lost = from_markup("[bold]$index[/] [$error]$text[/]", index=str(gpu.get("index", "?")), text=text)
            return lost.truncate(max(1, width), ellipsis=True)
        used, total = gpu.get("memory_used_mib") or 0.0, gpu.get("memory_total_mib") or 0.0
        utilization = gpu.get("utilization_percent")
        room = max(4, (width - 59) // 2) if width < 110 else 24
        parts = [from_markup("[bold]$index[/] ", index=str(gpu.get("index", "?")))]
        share = used / total if total else 0.0
        parts.append(_meter("mem", share, room, "$warning" if share > 0.95 else "$secondary"))
        parts.append(Content(f" {gibibytes(used):>4}/{gibibytes(total)} GiB  "))
        parts.append(_meter("util", (utilization or 0.0) / 100, room, "$success"))
        parts.append(Content(f" {utilization:3.0f} %  " if utilization is not None else "   ? %  "))
        if (power := gpu.get("power_w")) is not None:
            parts.append(from_markup(f"{power:4.0f}[$text-muted] W[/]  "))
        if (temperature := gpu.get("temperature_c")) is not None:
            tone = "$error" if temperature >= 85 else "$foreground"
            parts.append(from_markup(f"[{tone}]{temperature:3.0f}[/][$text-muted] °C[/]  "))
        if processes := gpu.get("processes"):
            first = processes[:PROCESSES_SHOWN]
            runs = [str(process.get("run") or process.get("name") or process.get("pid")) for process in first]
            parts.append(from_markup("[$text-muted]$runs[/]", runs=", ".join(dict.fromkeys(runs))))
        elif idle := self._idle(gpu):
            parts.append(from_markup("[$warning]$idle[/]", idle=idle))
        elif text := unlisted(gpu):
            parts.append(from_markup("[$text-muted]$text[/]", text=text))
        line = Content.assemble(*parts)
        return line.truncate(width, ellipsis=True) if width > 0 else line


def _meter(name: str, share: float, width: int, color: str) -> Content:
    filled, rest = bar(share, width)
    return from_markup(f"[$text-muted]{name}[/] [{color} on $grpo-track]{filled}[/][on $grpo-track]{rest}[/]")
