"""Secrets that are looked for in everything that is written, said and started."""
