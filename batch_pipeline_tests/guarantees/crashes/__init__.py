"""Kills processes of the real system at every failpoint."""
