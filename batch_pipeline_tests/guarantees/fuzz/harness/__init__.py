"""Inputs are made and looked at in processes that may die of them, and others watch these.

`targets` says what a target is; `child` runs inputs in a process of its own, `watch` starts such
processes and outlives what kills them.
"""
