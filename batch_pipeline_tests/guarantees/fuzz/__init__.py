"""Fuzzing: damaged inputs, the code that reads them, and the valid outcomes.

`targets` lists all targets, `damage` has the strategies that damage valid inputs, and `harness`
runs inputs in separate processes.
"""
