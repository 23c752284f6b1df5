"""What operators write: environment, dot-env files, stream files and the home folder.

Text comes in, checked values of the domain go out. Nothing here connects to a database, starts an
engine or knows Dagster.
"""
