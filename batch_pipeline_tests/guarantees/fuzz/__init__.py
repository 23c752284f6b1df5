"""Fuzzing: damaged inputs, the code that reads them, and the outcomes that are right.

`targets` lists all targets, `damage` has the strategies that damage valid inputs, and `harness`
runs inputs in processes of their own.
"""
