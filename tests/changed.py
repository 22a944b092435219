"""The tests that belong to what differs from the last commit: `make test-changed`.

By name alone: for jaxcomp/mixers/gossip/choco.py it is tests/gossip and the file's
examples. Others may break too; `make test` finds them.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_FOLDER = {
    "configs": "tests/test_configs.py",
    "docs": "tests/test_docs.py",
    "examples": "tests/test_examples.py",
    "notebooks": "tests/test_notebooks.py",
    "benchmarks": "tests/test_benchmarks.py",
}


def belonging_to(file: str) -> list[str]:
    """Folders and files of tests, relative to the project.

    Example:
        >>> belonging_to("jaxcomp/mixers/gossip/choco.py")
        ['jaxcomp/mixers/gossip/choco.py', 'tests/gossip']
    """
    path = Path(file)
    folder, *rest = path.parts
    if folder == "jaxcomp" and rest and path.suffix == ".py":
        parts = [part.removesuffix(".py") for part in rest]
        named = [test for part in reversed(parts) for test in _tests_named(part)]
        found = [file, *dict.fromkeys(named)]
    elif folder == "tests" and path.name.startswith("test_"):
        found = [file]
    elif folder == "tests" and len(rest) > 1:  # what the tests of a folder share
        found = _tests_named(rest[0])
    else:
        found = [OF_FOLDER.get(folder, "tests/test_docs.py")]
    return [name for name in found if (ROOT / name).exists()]


def _tests_named(part: str) -> list[str]:
    """The folder of tests of a part, and the files that begin with its name."""
    found = [f"tests/{f.name}" for f in sorted(ROOT.glob(f"tests/test_{part}*.py"))]
    has_folder = any((ROOT / "tests" / part).glob("test_*.py"))
    return [f"tests/{part}", *found] if has_folder else found


def main() -> None:
    """Print the tests, one a line; nothing where nothing has changed."""
    git = ["git", "-C", str(ROOT)]
    told = [
        [*git, "diff", "--name-only", "HEAD"],
        [*git, "ls-files", "--others", "--exclude-standard"],
    ]
    files = [
        name
        for command in told
        for name in subprocess.check_output(command, text=True).splitlines()
    ]
    print(*sorted({test for file in files for test in belonging_to(file)}), sep="\n")


if __name__ == "__main__":
    main()
