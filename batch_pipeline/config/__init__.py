"""Configuration by operators: environment, dot-env files, stream files and the home folder.

Text is parsed into validated values of the domain. Nothing here connects to a database, starts an
engine or depends on Dagster.
"""
