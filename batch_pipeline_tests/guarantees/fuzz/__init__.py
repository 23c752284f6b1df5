"""Damaged inputs by the thousand: what they are, what reads them, and which outcomes are right.

`targets` lists all targets, `damage` has the strategies that damage valid inputs, and `harness`
runs inputs in processes of their own.
"""
