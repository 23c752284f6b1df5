"""Values and rules of batch-pipeline.

The package uses the standard library only. It accesses no file, database, clock or network (except
`failpoint` and the clock of `progress`); time, randomness and ids are arguments.
"""
