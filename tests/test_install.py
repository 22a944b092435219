"""The package is found from everywhere, also from the folder that its clone lies in."""

import subprocess
import sys

FIND = "import importlib.util as u; print(u.find_spec('jaxcomp').origin)"


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    """An editable install has to be a path: `package-dir` in pyproject.toml."""
    (tmp_path / "jaxcomp").mkdir()
    command = [sys.executable, "-c", FIND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip().endswith("__init__.py"), "install it again: make setup"
