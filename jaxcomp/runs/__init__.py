"""The frame of every run: folder, lock, tables, interrupts, progress, units.

Training, the convex testbed, the report and the commands all use it, so that a run of
any kind looks, stops and goes on alike.
"""
