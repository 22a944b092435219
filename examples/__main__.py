"""What compression changes in each program: `python -m examples [name]`."""

import difflib
import sys
from pathlib import Path

__all__ = ["NAMES", "changed_lines", "difference"]

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in (FOLDER / "uncompressed").glob("*.py"))


def changed_lines(name: str) -> int:
    """Lines that are new, gone or other ones; imports are not counted."""
    before, after = _lines(name)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(
        max(was[1] - was[0], now[1] - now[0])
        for kind, *ends in matcher.get_opcodes()
        if kind != "equal"
        for was, now in [(ends[:2], ends[2:])]
    )


def difference(name: str) -> str:
    """The lines themselves."""
    return "".join(
        line
        for line in difflib.unified_diff(*_lines(name), n=0)
        if not line.startswith(("---", "+++", "@@"))
    )


def _lines(name: str) -> tuple[list[str], list[str]]:
    """Both forms without their imports."""
    files = (FOLDER / "uncompressed" / f"{name}.py", FOLDER / f"{name}.py")
    before, after = (
        [
            line
            for line in file.read_text().splitlines(keepends=True)
            if not line.startswith(("import ", "from "))
        ]
        for file in files
    )
    return before, after


def main(names: list[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise SystemExit(f"no example {name!r}. There are: {', '.join(NAMES)}")
    for name in names or NAMES:
        print(f"{name}: {changed_lines(name)} lines\n{difference(name)}")


if __name__ == "__main__":
    main(sys.argv[1:])
