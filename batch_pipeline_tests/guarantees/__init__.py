"""Proofs of promises that need a harness of their own."""
