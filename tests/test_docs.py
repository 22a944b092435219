"""What the documents show is run, and what they promise is kept."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomp import compressors, exchanges, memory, scope
from tests import laws

ROOT = Path(__file__).resolve().parent.parent


def code_blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
