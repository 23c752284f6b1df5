"""Benchmarks: each module runs on its own and prints a table; no test asserts timings."""
