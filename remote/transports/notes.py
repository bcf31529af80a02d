"""What this program notes about boxes between starts: small JSON files in the state directory of this machine."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


class Notes:
    """One file: a value per name. A disk that does not take it, or a damaged file, prevents nothing."""

    def __init__(self, file: str) -> None:
        self._name = file

    @property
    def path(self) -> Path:
        import platformdirs

        return Path(platformdirs.user_state_dir("grpo-tui")) / self._name

    def read(self) -> dict[str, Any]:
        """All values; {} without a usable file."""
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, values: dict[str, Any]) -> None:
        """Replace all values."""
        from grpo_train.run_dir.files import atomic_write

        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, json.dumps(values, indent=1) + "\n", mode=0o600)
