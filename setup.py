"""The build step that pyproject.toml cannot say: the wheel takes configs/ along.

They are copied to jaxcomp/shipped/configs, where `jaxcomp train --config=default` finds
them. An editable install uses the folder itself.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies the configs, so that git holds them once."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "jaxcomp" / "shipped" / "configs"
            shutil.rmtree(target, ignore_errors=True)
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree("configs", target, ignore=unwanted)


setup(cmdclass={"build_py": BuildWithConfigs})
