"""Values and rules of batch-pipeline.

Standard library only: no file, database, clock or network is touched here, and time, randomness and
ids arrive as arguments.
"""
