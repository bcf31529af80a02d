"""The GPUs of the box, one line each, or a note that it has none."""

from __future__ import annotations

from textual.content import Content

from grpo_train.run_dir.files import to_float
from grpo_tui.model.formatting import bar, gibibytes
from grpo_tui.widgets.panel import Panel, toned


class GpuPanel(Panel):
    """Memory, utilization, power, temperature and the runs of each GPU."""

    def state(self) -> object:
        return (self.store.versions["gpu"], self.store.versions["link"], self.size, self.app.theme)

    def refresh_titles(self) -> None:
        gpus = self.store.gpus
        title = "gpu"
        if gpus:
            names = {str(gpu.get("name", "")).removeprefix("NVIDIA ") for gpu in gpus}
            count = f"{len(gpus)}× " if len(gpus) > 1 else ""
            title = f"gpu [$text-muted]{count}{' · '.join(sorted(names))}[/]"
        self.set_titles(title, toned(self.store.gpu_freshness()) if gpus else "")

    def lines_wanted(self) -> int:
        """Rows of content."""
        return max(1, len(self.store.gpus or ()))

    def render(self) -> Content:
        gpus = self.store.gpus
        if gpus is None:
            return Content.from_markup("[$text-muted]no samples yet[/]")
        if not gpus:
            host = self.store.host or {}
            cores = host.get("cpu_count")
            device = f"runs use {cores} CPU cores" if cores else "runs use the CPU"
            note = self.store.gpu_note or "no GPU on this box"
            return Content.from_markup("[$text-muted]$note · $device[/]", note=note, device=device)
        return Content("\n").join(self._line(gpu, self.size.width) for gpu in gpus)

    def _line(self, gpu: dict[str, object], width: int) -> Content:
        used, total = to_float(gpu.get("memory_used_mib")) or 0.0, to_float(gpu.get("memory_total_mib")) or 0.0
        utilization = to_float(gpu.get("utilization_percent"))
        room = max(4, (width - 59) // 2) if width < 110 else 24
        parts = [Content.from_markup(f"[bold]{gpu.get('index', '?')}[/] ")]
        share = used / total if total else 0.0
        parts.append(_meter("mem", share, room, "$warning" if share > 0.95 else "$secondary"))
        parts.append(Content(f" {gibibytes(used):>4}/{gibibytes(total)} GiB  "))
        parts.append(_meter("util", (utilization or 0.0) / 100, room, "$success"))
        parts.append(Content(f" {utilization:3.0f} %  " if utilization is not None else "   ? %  "))
        if (power := to_float(gpu.get("power_w"))) is not None:
            parts.append(Content.from_markup(f"{power:4.0f}[$text-muted] W[/]  "))
        if (temperature := to_float(gpu.get("temperature_c"))) is not None:
            tone = "$error" if temperature >= 85 else "$foreground"
            parts.append(Content.from_markup(f"[{tone}]{temperature:3.0f}[/][$text-muted] °C[/]  "))
        processes = gpu.get("processes")
        if isinstance(processes, list) and processes:
            runs = [
                str(process.get("run") or process.get("name") or process.get("pid"))
                for process in processes
                if isinstance(process, dict)
            ]
            parts.append(Content.from_markup("[$text-muted]$runs[/]", runs=", ".join(dict.fromkeys(runs))))
        line = Content.assemble(*parts)
        return line.truncate(width, ellipsis=True) if width > 0 else line


def _meter(name: str, share: float, width: int, color: str) -> Content:
    filled, rest = bar(share, width)
    return Content.from_markup(f"[$text-muted]{name}[/] [{color} on $grpo-track]{filled}[/][on $grpo-track]{rest}[/]")
