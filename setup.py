"""Ship config/ inside the wheel as grpo_train/_config; everything else is in pyproject.toml.

The repository keeps one copy. A ``package-dir`` mapping would ship it, too, but an editable install cannot import it.
"""

import os

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfig(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_tree("config", os.path.join(self.build_lib, "grpo_train", "_config"))


setup(cmdclass={"build_py": BuildWithConfig})
