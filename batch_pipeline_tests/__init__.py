"""Tests of each package, and `acceptance`, `guarantees`, `regression`, `benchmarks` and others."""
