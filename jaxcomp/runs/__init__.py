"""The frame of every run: folder, lock, tables, interrupts, progress, units.

Training, the report and the commands use it.
"""
