"""Benchmarks: each module runs by itself and prints a table; no test asserts timings."""
