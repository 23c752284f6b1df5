"""Tests by package, and `acceptance`, `guarantees`, `regression`, `benchmarks` and others."""
