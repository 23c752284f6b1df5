"""Lets `python -m batch_pipeline` be the command."""

from batch_pipeline.cli import main

main()
