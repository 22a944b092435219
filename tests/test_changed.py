"""Which tests `make test-changed` runs."""

import pytest

from tests.changed import belonging_to


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("jaxcomp/wire/bytes.py", ["jaxcomp/wire/bytes.py", "tests/test_wire.py"]),
        (
            "jaxcomp/mixers/gossip/choco.py",
            ["jaxcomp/mixers/gossip/choco.py", "tests/gossip"],
        ),
        ("tests/gossip/runs.py", ["tests/gossip"]),
        ("tests/mutations/faults.toml", ["tests/test_mutations.py"]),
        ("tests/gossip/test_messages.py", ["tests/gossip/test_messages.py"]),
        ("configs/default.py", ["tests/test_configs.py"]),
        ("README.md", ["tests/test_docs.py"]),
        ("jaxcomp/py.typed", ["tests/test_docs.py"]),
        ("jaxcomp/was_deleted.py", []),
    ],
)
def test_tests_belong_to_a_file_by_its_name(file, expected):
    assert belonging_to(file) == expected
