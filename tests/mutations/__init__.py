"""Deliberate faults, each of which the default tests have to notice.

    python -m tests.mutations            # all of them: ten minutes
    python -m tests.mutations residual   # those whose name begins so
    python -m tests.mutations --list

A suite that becomes quicker must not become blind.
"""
